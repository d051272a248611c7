"""Emit what the model computes, from hooks."""

from itertools import cycle
from typing import Any

from torch import Tensor

from harness.candidates.published.megatron_core.attention import Current


def watch(gpt: Any, *, ahead: bool) -> None:
    """Watch the decoder, or the further depth, which runs after it but computes its loss first."""
    layers = [gpt.mtp.layers[0].mtp_model_layer] if ahead else gpt.decoder.layers

    def emit(key: str, x_LB: Tensor) -> None:
        Current.emit(key, x_LB.transpose(0, 1).flatten(0, 1), Current.tokens)

    for i, layer in enumerate(layers):
        layer.self_attention.core_attention.name = f"layers.{i}"
        layer.register_forward_hook(lambda _, _args, out, key=f"layers.{i}.out": emit(key, out[0]))
    turns = range(2 if ahead else 1)
    embeddings, losses = cycle(turns), cycle(turns)

    def after_embedding(_module: Any, _args: Any, kwargs: Any, out: Tensor) -> None:
        if next(embeddings) == turns[-1]:
            Current.emit("ids", kwargs["input_ids"].flatten(), Current.tokens)
            emit("embed", out)

    gpt.embedding.register_forward_hook(after_embedding, with_kwargs=True)
    released = gpt.compute_language_model_loss

    def compute_loss(labels: Tensor, logits: Tensor) -> Tensor:
        is_first = next(losses) == 0
        if is_first:
            # The loss overwrites the logits.
            emit("logits", logits.clone())
            Current.emit("labels", labels.flatten(), Current.tokens)
        nll: Tensor = released(labels, logits)
        if is_first:
            nll.retain_grad()
            Current.losses.append((nll, Current.tokens))
            Current.emit("nll", nll.flatten(), Current.tokens)
        return nll

    gpt.compute_language_model_loss = compute_loss
