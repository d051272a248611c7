"""The models of a case, as the library builds and shards them; they emit what they compute.

Legend: B rows, S tokens of a row on this rank, V vocabulary.
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
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.nn import functional as F

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.nemo_automodel.mesh import Mesh
from harness.candidates.published.nemo_automodel.released import NUMBERS
from harness.candidates.published.wiring.emitting import emit_inputs, emit_losses, without
from harness.candidates.published.wiring.gradients import silent
from harness.case import Case

logging.getLogger("nemo_automodel").setLevel(logging.ERROR)
# The library compiles its norm, which rounds the same without.
torch._dynamo.config.disable = True


def built(case: Case, rank: Rank, *, own: bool) -> nn.Module:
    """Return a model of the library's registry, or of transformers if it has none or not `own`."""
    # The library itself adds activation checkpointing.
    plain = replace(case, checkpoint=False)
    if not own or case.window is not None:
        of_transformers: nn.Module = huggingface.build(plain, rank.device)
        return of_transformers
    module = importlib.import_module(f"nemo_automodel.components.models.{case.model}.model")
    backend = BackendConfig(
        attn="sdpa", linear="torch", rms_norm="torch_fp32", rope="torch", rope_fusion=False
    )
    model = module.ModelClass(huggingface.config(plain), backend)
    if case.tied:
        model.tie_weights()
    loaded: nn.Module = huggingface.load(model, plain, rank.device)
    return loaded


def sharded(
    model: Any, mesh: Mesh, *, checkpoint: bool, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """Wrap the model in FSDP2 and activation checkpointing, as `parallelize_model` does."""
    context: Any = SimpleNamespace(
        strategy_config=FSDP2Config(
            mp_policy=MixedPrecisionPolicy(reduce_dtype=dtype, cast_forward_inputs=False)
        ),
        activation_checkpointing=checkpoint,
        reapply_trainability=None,
        device_mesh=mesh,
    )
    model = _parallelize_fsdp2(model, context, parallelizer=get_model_parallelizer(model))
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # gloo has no average; so FSDP sums and divides.
            module.set_force_sum_reduction_for_comms(True)
    # The recipe reads only this switch of a model's features.
    model.supports = SimpleNamespace(mtp_enabled=False)
    wrapped: nn.Module = model
    return wrapped


def parameters(model: nn.Module, case: Case) -> dict[str, nn.Parameter]:
    """Return parameters by our names, also of modules in a wrapper."""
    plain = SimpleNamespace(
        named_parameters=lambda: [
            (name.replace("_checkpoint_wrapped_module.", ""), parameter)
            for name, parameter in model.named_parameters()
        ]
    )
    return huggingface.parameters(plain, case)


def attach_ring(model: nn.Module, mesh: Mesh, *, compiled: bool) -> None:
    """Attach the hooks of a model on sdpa; if `compiled`, also those at the call."""
    if mesh["cp"].size() > 1:
        context_parallel.attach_context_parallel_hooks(model)
        if compiled:
            context_parallel.attach_cp_sdpa_hooks(model, mesh["cp"])


def unwrapped(model: Any) -> Any:
    """Return the modules to be watched, without the wrappers of activation checkpointing."""
    layers = [
        SimpleNamespace(
            self_attn=getattr(layer.self_attn, "_checkpoint_wrapped_module", layer.self_attn),
            register_forward_hook=layer.register_forward_hook,
        )
        for layer in model.model.layers
    ]
    inner = SimpleNamespace(embed_tokens=model.model.embed_tokens, layers=layers)
    return SimpleNamespace(model=inner, lm_head=model.lm_head)


class EmittingModel:
    """Hooks on a model and its loss, which emit what these compute.

    Token numbers come with the batch. Keys in `hidden` are not of this rank's tokens.
    """

    def __init__(self, model: nn.Module, case: Case, *, hidden: tuple[str, ...]) -> None:
        self.model, self.case = model, case
        self.hidden = hidden
        self.emit: Emit = silent
        self.tokens = torch.empty(0)
        self._during_forward = ExitStack()
        model.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True)
        model.register_forward_hook(lambda *_: self._during_forward.close())

    def _before(self, _: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        self.tokens = kwargs.pop(NUMBERS).flatten() - 1
        emit = without(self.emit, *self.hidden)
        emit_inputs(emit, kwargs, self.tokens)
        self._during_forward.enter_context(
            huggingface.watched(unwrapped(self.model), self.case, emit, self.tokens)
        )
        return args, kwargs

    def loss(self, criterion: nn.Module) -> nn.Module:
        """Return the loss module, which now emits each token's loss before it computes."""
        criterion.register_forward_pre_hook(self._before_loss, with_kwargs=True)
        return criterion

    def _before_loss(self, _: nn.Module, __: Any, kwargs: dict[str, Any]) -> None:
        labels = kwargs["labels"].flatten()
        with torch.no_grad():
            logits_BSV = (
                kwargs["logits"]
                if "logits" in kwargs
                else F.linear(kwargs["hidden_states"], kwargs["lm_weight"])
            )
            nll = F.cross_entropy(logits_BSV.flatten(0, -2).float(), labels, reduction="none")
        emit_losses(self.emit, nll, labels, self.tokens)
