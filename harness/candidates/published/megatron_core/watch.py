"""Emit what the model computes, while it does."""

from itertools import cycle
from typing import Any

from torch import Tensor

from harness.candidates.published.megatron_core.attention import Seat


def watch(gpt: Any, *, ahead: bool) -> None:
    """Watch the decoder, or the further depth, which runs after it but takes its loss first."""
    layers = [gpt.mtp.layers[0].transformer_layer] if ahead else gpt.decoder.layers
    Seat.names = {
        layer.self_attention.core_attention.layer: f"layers.{i}" for i, layer in enumerate(layers)
    }

    def tell(key: str, x_LB: Tensor) -> None:
        Seat.emit(key, x_LB.transpose(0, 1).flatten(0, 1), Seat.numbers)

    for i, layer in enumerate(layers):
        layer.register_forward_hook(
            lambda _, given, out, key=f"layers.{i}.out": tell(key, out[0])  # noqa: ARG005
        )
    turns = range(2 if ahead else 1)
    embeddings, losses = cycle(turns), cycle(turns)

    def embedded(module: Any, given: Any, named: Any, out: Tensor) -> None:  # noqa: ARG001
        if next(embeddings) == turns[-1]:
            Seat.emit("ids", named["input_ids"].flatten(), Seat.numbers)
            tell("embed", out)

    gpt.embedding.register_forward_hook(embedded, with_kwargs=True)
    compute = gpt.compute_language_model_loss

    def loss(labels: Tensor, logits: Tensor) -> Tensor:
        first = next(losses) == 0
        if first:
            # The loss overwrites the logits.
            tell("logits", logits.clone())
            Seat.emit("labels", labels.flatten(), Seat.numbers)
        nll: Tensor = compute(labels, logits)
        if first:
            nll.retain_grad()
            Seat.losses.append((nll, Seat.numbers))
            Seat.emit("nll", nll.flatten(), Seat.numbers)
        return nll

    gpt.compute_language_model_loss = loss
