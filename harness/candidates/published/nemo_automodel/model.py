"""The models of a case, as the library builds and shards them, and what they tell.

Legend: B rows, S a rank's part of them, V vocabulary.
"""

import importlib
import logging
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo
from nemo_automodel.components.distributed.config import FSDP2Config
from nemo_automodel.components.distributed.context_parallel import utils as context_parallel
from nemo_automodel.components.distributed.model_parallelizer import (
    _parallelize_fsdp2,
    get_model_parallelizer,
)
from nemo_automodel.components.models.common import BackendConfig
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.nn import functional as F

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.nemo_automodel.mesh import Mesh
from harness.candidates.published.nemo_automodel.recipe import NUMBERS
from harness.candidates.published.wiring.gradients import silent
from harness.case import Case

logging.getLogger("nemo_automodel").setLevel(logging.ERROR)
# Its norm is compiled, and rounds the same if it is not.
torch._dynamo.config.disable = True


def built(case: Case, rank: Rank, *, own: bool) -> nn.Module:
    """A model of the library's registry, or of transformers if it has none or `own` is off."""
    # The library itself adds activation checkpointing.
    plain = replace(case, checkpoint=False)
    if not own or case.window is not None:
        theirs: nn.Module = huggingface.build(plain, rank.device)
        return theirs
    module = importlib.import_module(f"nemo_automodel.components.models.{case.model}.model")
    backend = BackendConfig(
        attn="sdpa", linear="torch", rms_norm="torch_fp32", rope="torch", rope_fusion=False
    )
    model = module.ModelClass(huggingface.config(plain), backend)
    if case.tied:
        model.tie_weights()
    loaded: nn.Module = huggingface.load(model, plain, rank.device)
    return loaded


def sharded(model: Any, case: Case, mesh: Mesh) -> nn.Module:
    """Under FSDP2 and activation checkpointing, as `parallelize_model` puts it there."""
    context: Any = SimpleNamespace(
        strategy_config=FSDP2Config(
            mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
        ),
        activation_checkpointing=case.checkpoint,
        reapply_trainability=None,
        device_mesh=mesh,
    )
    model = _parallelize_fsdp2(model, context, parallelizer=get_model_parallelizer(model))
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # gloo has no average, so FSDP divides a sum.
            module.set_force_sum_reduction_for_comms(True)
    # The recipe asks only this of what a model supports.
    model.supports = SimpleNamespace(mtp_enabled=False)
    whole: nn.Module = model
    return whole


def parameters(model: nn.Module, case: Case) -> dict[str, nn.Parameter]:
    """Parameters by our names, also where a wrapper is around a module."""
    plain = SimpleNamespace(
        named_parameters=lambda: [
            (name.replace("_checkpoint_wrapped_module.", ""), parameter)
            for name, parameter in model.named_parameters()
        ]
    )
    return huggingface.parameters(plain, case)


def attach_ring(model: nn.Module, mesh: Mesh, *, compiled: bool) -> None:
    """Attach the hooks of a model on sdpa, and with `compiled` the further ones."""
    if mesh["cp"].size() > 1:
        context_parallel.attach_context_parallel_hooks(model)
        if compiled:
            context_parallel.attach_cp_sdpa_hooks(model, mesh["cp"])


def unwrapped(model: Any) -> Any:
    """The modules that are watched, without what activation checkpointing puts around them."""
    layers = [
        SimpleNamespace(
            self_attn=getattr(layer.self_attn, "_checkpoint_wrapped_module", layer.self_attn),
            register_forward_hook=layer.register_forward_hook,
        )
        for layer in model.model.layers
    ]
    inner = SimpleNamespace(embed_tokens=model.model.embed_tokens, layers=layers)
    return SimpleNamespace(model=inner, lm_head=model.lm_head)


class Watch:
    """Sends on what a forward and its loss compute, with the numbers that came with the batch."""

    def __init__(self, model: nn.Module, case: Case, *, hidden: tuple[str, ...]) -> None:
        self.model, self.case = model, case
        # Keys of tensors that are not of this rank's tokens.
        self.hidden = hidden
        self.emit: Emit = silent
        self.tokens = torch.empty(0)
        self._forward = ExitStack()
        model.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True)
        model.register_forward_hook(lambda *_: self._forward.close())

    def _before(self, _: nn.Module, given: Any, named: dict[str, Any]) -> tuple[Any, Any]:
        self.tokens = named.pop(NUMBERS).flatten() - 1
        for key, theirs in (("ids", "input_ids"), ("positions", "position_ids")):
            if named.get(theirs) is not None:
                self._tell(key, named[theirs].flatten(), self.tokens)
        seen = unwrapped(self.model)
        self._forward.enter_context(huggingface.watched(seen, self.case, self._tell, self.tokens))
        return given, named

    def _tell(self, key: str, tensor: Tensor, tokens: Tensor) -> None:
        if key not in self.hidden:
            self.emit(key, tensor, tokens)

    def loss(self, criterion: nn.Module) -> nn.Module:
        """The loss module, which emits each token's loss before it computes."""
        criterion.register_forward_pre_hook(self._before_loss, with_kwargs=True)
        return criterion

    def _before_loss(self, _: nn.Module, __: Any, named: dict[str, Any]) -> None:
        labels = named["labels"].flatten()
        with torch.no_grad():
            logits_BSV = (
                named["logits"]
                if "logits" in named
                else F.linear(named["hidden_states"], named["lm_weight"])
            )
            nll = F.cross_entropy(logits_BSV.flatten(0, -2).float(), labels, reduction="none")
        self.emit("labels", labels, self.tokens)
        self.emit("nll", nll, self.tokens)
