"""Emit token losses from trl's trainer, whose patched forward returns log-probabilities."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.protocol import Emit
from harness.candidates.published.wiring.emitting import emit_losses
from harness.candidates.published.wiring.rows import IGNORED, shifted
from harness.candidates.published.wiring.trainer import Batch, EmittingTrainer


class EmittingLogProbs(EmittingTrainer):
    """A mixin that takes the losses of tokens from the output of the patched forward."""

    @property
    def step_emit(self: Any) -> Emit:
        """How to emit in the current step: without a second forward for metrics."""
        emit: Emit = EmittingTrainer.step_emit.fget(self)  # type: ignore[attr-defined]

        def emit_first(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            # The second forward runs without gradients.
            if torch.is_grad_enabled() or key.startswith("grad."):
                emit(key, tensor, tokens)

        return emit_first

    def emitting_layers(self: Any, model: Any, emit: Emit) -> AbstractContextManager[Any]:
        """While this lasts, emit what layers compute; label smoothing runs the forward twice."""
        return nullcontext() if self.label_smoother else super().emitting_layers(model, emit)

    @contextmanager
    def emitting_losses(self: Any, model: Any, inputs: Batch, emit: Emit) -> Iterator[None]:
        labels, tokens_BL = inputs.get("shift_labels"), self.tokens
        if labels is None:
            labels = shifted(inputs["labels"])
        tokens, scale = tokens_BL.flatten(), (labels != IGNORED) / self.case.ranks

        def widened(tensor: Tensor) -> Tensor:
            return F.pad(tensor, (0, tokens_BL.shape[1] - tensor.shape[1]))

        def after_forward(_module: Any, _args: Any, output: Any) -> None:
            log_probs = getattr(output, "log_probs", None)
            if log_probs is None or not log_probs.requires_grad:
                return
            emit_losses(emit, -widened(log_probs).flatten(), labels.flatten(), tokens)
            # FSDP averages gradients over all ranks.
            log_probs.register_hook(
                lambda grad: emit("weight", (-widened(grad) * scale).flatten(), tokens)
            )

        hook = model.register_forward_hook(after_forward)
        try:
            yield
        finally:
            hook.remove()
