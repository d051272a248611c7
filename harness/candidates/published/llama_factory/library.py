"""The parts of LLaMA-Factory that a step needs, without what its packages import beside them."""

from collections.abc import Callable
from importlib import import_module
from types import FunctionType
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from harness.candidates.published.wiring.packages import bare_packages, folder, lifted

V1 = "llamafactory.v1"
PARALLEL = f"{V1}.plugins.model_plugins.parallelization"

bare_packages(
    "llamafactory",
    V1,
    *(f"{V1}.{name}" for name in ("accelerator", "core", "plugins", "utils")),
    *(f"{V1}.plugins.{name}_plugins" for name in ("model", "trainer")),
    PARALLEL,
)

# Only now can they be imported.
helper = import_module(f"{V1}.accelerator.helper")
interface = import_module(f"{V1}.accelerator.interface")
parallel = import_module(f"{PARALLEL}.sequence_parallel")
batching = import_module(f"{V1}.plugins.trainer_plugins.batching")
batches = import_module(f"{V1}.utils.helper")

DistributedInterface: Any = interface.DistributedInterface
apply_sequence_parallel: Callable[..., None] = parallel.apply_sequence_parallel
pad_and_truncate: Callable[..., Any] = batches.pad_and_truncate
pack: Callable[..., Any] = batching._pack_padding_free_samples


def _method(file: str, name: str, **given: Any) -> FunctionType:
    path = folder(V1) / f"{file}.py"
    package = f"{V1}.{file.partition('/')[0]}"
    # Imports inside the method are relative to its package.
    method: FunctionType = lifted(path, name, {"__package__": package, **given})
    return method


_TYPES = dict.fromkeys(("BatchInput", "HFModel", "ModelOutput"), Any) | {"Tensor": Tensor}

fit = _method(
    "core/base_trainer",
    "BaseTrainer.fit",
    Dim=interface.Dim,
    DistributedInterface=DistributedInterface,
    ReduceOp=helper.ReduceOp,
    compute_valid_tokens=batches.compute_valid_tokens,
    logger=interface.logger,
)
compute_log_probs = _method("core/base_trainer", "BaseTrainer.compute_log_probs", F=F, **_TYPES)
compute_loss = _method("trainers/sft_trainer", "SFTTrainer.compute_loss", **_TYPES)
