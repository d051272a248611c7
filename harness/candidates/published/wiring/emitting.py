"""Emit the inputs of a library's model, and the label, loss and weight of each token.

`huggingface.watched` emits what layers compute. Token numbers come from the library's own cut.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from harness.candidates.protocol import Emit


def emit_inputs(emit: Emit, inputs: Mapping[str, Any], tokens: Tensor) -> None:
    """Emit the ids and positions that a model is called with, where they are given."""
    for key, name in (("ids", "input_ids"), ("positions", "position_ids")):
        if inputs.get(name) is not None:
            emit(key, inputs[name].flatten(), tokens)


@contextmanager
def emitting_inputs(model: Any, emit: Emit, tokens_BL: Tensor) -> Iterator[None]:
    """While this lasts, emit ids and positions as they reach a transformers model, cut and padded.

    One row of positions may stand for every row.
    """
    base, tokens = model.model, tokens_BL.flatten()
    handles = (
        base.embed_tokens.register_forward_pre_hook(
            lambda _, args: emit("ids", args[0].flatten(), tokens)
        ),
        base.rotary_emb.register_forward_pre_hook(
            lambda _, args, kwargs: emit(
                "positions",
                kwargs.get("position_ids", args[-1]).expand_as(tokens_BL).flatten(),
                tokens,
            ),
            with_kwargs=True,
        ),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def emit_losses(
    emit: Emit, nll: Tensor, labels: Tensor, tokens: Tensor, scale: Tensor | None = None
) -> None:
    """Emit the label and loss of each token; with `scale`, also its weight once backward has it.

    A weight is the gradient of a token's loss, times `scale`.
    """
    emit("labels", labels, tokens)
    emit("nll", nll, tokens)
    if scale is not None and nll.requires_grad:
        nll.register_hook(lambda grad: emit("weight", grad * scale, tokens))


def without(emit: Emit, *endings: str) -> Emit:
    """Return an emit that leaves out keys with one of these endings."""

    def emit_others(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
        if not key.endswith(endings):
            emit(key, tensor, tokens)

    return emit_others
