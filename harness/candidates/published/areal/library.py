"""areal's modules, without the services that its packages import."""

import sys
from contextlib import ExitStack
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.wiring.absent import absent
from harness.candidates.published.wiring.gathering import all_gather
from harness.candidates.published.wiring.packages import bare_packages, folder, lifted
from harness.candidates.published.wiring.stand_ins import Replacing

# Tokens per page; with the released 256 all rows of a case would be on the first rank.
PAGE = 4


def _prepare() -> None:
    flash.give_to_transformers()
    # No cluster is started, and loops that numba would compile run as they are.
    for name, decorator in (("ray", "remote"), ("numba", "njit")):
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name])[decorator] = lambda decorated: decorated
    # areal compiles its log-probabilities, which takes longer here than a whole case.
    torch._dynamo.config.disable = True
    bare_packages("areal", "areal.infra", "areal.engine", "areal.trainer", "areal.trainer.ppo")
    # The controllers, which no rank runs, are made of these.
    vars(sys.modules["areal.infra"])["TrainController"] = object


_prepare()

arguments: Any = import_module("areal.api.cli_args")
data: Any = import_module("areal.utils.data")
fsdp_engine: Any = import_module("areal.engine.fsdp_engine")
stats_tracker: Any = import_module("areal.utils.stats_tracker")
ulysses: Any = import_module("areal.models.fsdp.ulysses")
with absent("areal.experimental.training_service", "areal.infra.rpc"):
    ppo_actor: Any = import_module("areal.trainer.ppo.actor")
    import_module("areal.trainer.ppo.critic")
functional: Any = import_module("areal.utils.functional.functional")

data.N_TOKENS_PER_PAGE = PAGE
fsdp_engine.dist_F = SimpleNamespace(all_gather=all_gather)
# Modules that insist on fp32.
OF_FP32: tuple[Any, ...] = (stats_tracker, functional)

_LM = folder("areal.trainer") / "sft" / "lm_engine.py"
_compute_packed_sft_loss = lifted(_LM, "compute_packed_sft_loss", {"stats_tracker": stats_tracker})


def compute_packed_sft_loss(
    logprobs: Tensor, entropy: Tensor, input_: dict[str, Any], **options: Any
) -> Tensor:
    """Return the published loss without the 1e-5 that it adds to the number of targets."""
    count = input_["loss_mask"].bool().count_nonzero()
    loss: Tensor = _compute_packed_sft_loss(logprobs, entropy, input_, **options)
    exact: Tensor = loss * ((1e-5 + count) / count)
    return exact


def computing_in(dtype: torch.dtype) -> ExitStack:
    """Let what insists on fp32 insist on another dtype, while this lasts."""
    patches = ExitStack()
    for module in OF_FP32:
        other = Replacing(torch, float=dtype, float32=dtype)
        patches.enter_context(patch.object(module, "torch", other))
    return patches


# LMEngine.train_lm joins the rows, and passes them to this function.
train_lm = lifted(
    _LM,
    "LMEngine._train_lm",
    {"stats_tracker": stats_tracker, "compute_packed_sft_loss": compute_packed_sft_loss},
)
