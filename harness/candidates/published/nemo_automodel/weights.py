"""Models of the library's registry in the place of those of transformers that a recipe builds."""

import importlib
from collections.abc import Iterator
from copy import deepcopy
from typing import Any
from unittest.mock import patch

import torch
from nemo_automodel.components.models.common import BackendConfig
from torch import Tensor, nn

from harness.recipes.result import plain_name, whole

# How the library names the weights of experts, which it holds transposed.
EXPERTS = {
    "experts.gate_and_up_projs": "experts.gate_up_proj",
    "experts.down_projs": "experts.down_proj",
}


def own(model: Any) -> nn.Module:
    """Return the library's model of this architecture and these weights.

    Hooks on a module of the given model are called where the module of its name is.
    """
    config = deepcopy(model.config)
    dtype = config.torch_dtype = next(model.parameters()).dtype
    module = importlib.import_module(f"nemo_automodel.components.models.{config.model_type}.model")
    backend = BackendConfig(
        attn="sdpa",
        linear="torch",
        # The default is an operator of its own that computes in fp32 whatever it is given.
        rms_norm="torch" if dtype == torch.float64 else "torch_fp32",
        rope="torch",
        rope_fusion=False,
        experts="torch",
        dispatcher="torch",
    )
    # A model of experts asks for a GPU where it is built.
    with patch.object(torch.cuda, "current_device", lambda: 0):
        loaded: Any = module.ModelClass(config, backend=backend)
    rotation = loaded.model.rotary_emb
    if isinstance(getattr(rotation, "device", None), torch.device):
        rotation.device = model.device
    if config.tie_word_embeddings:
        loaded.tie_weights()
    for parameter, theirs, is_turned in _pairs(loaded, model):
        parameter.data = theirs.data.mT.contiguous() if is_turned else theirs.data.clone()
    _echo(loaded, model)
    loaded.train(model.training)
    own_model: nn.Module = loaded
    return own_model


def give_gradients(loaded: nn.Module, model: nn.Module) -> None:
    """Give the gradients of the library's model to that from which it has its weights."""
    for parameter, theirs, is_turned in _pairs(loaded, model):
        if parameter.grad is not None:
            gradient = whole(parameter.grad)
            theirs.grad = gradient.mT.contiguous() if is_turned else gradient


def _pairs(loaded: nn.Module, model: nn.Module) -> Iterator[tuple[Any, Any, bool]]:
    """Yield each parameter, the one of the given model, and whether it is transposed there."""
    found = dict(model.named_parameters())
    for name, parameter in loaded.named_parameters():
        their_name = plain_name(name)
        for ours, theirs in EXPERTS.items():
            their_name = their_name.replace(ours, theirs)
        yield parameter, found.pop(their_name), their_name != plain_name(name)
    if found:
        raise RuntimeError(f"{type(loaded).__name__} does not have {', '.join(found)}")


def _echo(loaded: nn.Module, model: nn.Module) -> None:
    """Call the hooks of the given model's modules where those of the same names are called."""
    named = dict(model.named_modules())

    def echo(module: nn.Module, theirs: nn.Module) -> None:
        def before(_: nn.Module, given: tuple[Any, ...]) -> None:
            for hook in theirs._forward_pre_hooks.values():
                hook(theirs, given)

        def after(_: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
            for hook in theirs._forward_hooks.values():
                hook(theirs, given, out)

        module.register_forward_pre_hook(before)
        # The model below the head returns its states, and that of transformers an object.
        if module is not loaded.model:
            module.register_forward_hook(after, always_call=True)

    for name, module in loaded.named_modules():
        if name in named:
            echo(module, named[name])
