"""What trl's trainer computes: it has log-probabilities of labels, and no logits."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.protocol import Emit
from harness.candidates.published.wiring.decoder import IGNORED
from harness.candidates.published.wiring.trainer import Batch, Following


class Fused(Following):
    """Losses of tokens are seen where the patched forward returns them."""

    @property
    def say(self: Any) -> Emit:
        """Emit all but what a second forward computes for metrics, without gradients."""
        say: Emit = Following.say.fget(self)  # type: ignore[attr-defined]

        def tell(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            if torch.is_grad_enabled() or key.startswith("grad."):
                say(key, tensor, tokens)

        return tell

    def watching(self: Any, model: Any, say: Emit) -> AbstractContextManager[Any]:
        """Watch layers, but not where label smoothing runs the forward twice."""
        return nullcontext() if self.label_smoother else super().watching(model, say)

    @contextmanager
    def listening(self: Any, model: Any, inputs: Batch, say: Emit) -> Iterator[None]:
        labels, tokens = inputs.get("shift_labels"), self.tokens
        if labels is None:
            labels = F.pad(inputs["labels"][:, 1:], (0, 1), value=IGNORED)
        flat, given = tokens.flatten(), (labels != IGNORED) / self.case.ranks

        def widened(tensor: Tensor) -> Tensor:
            return F.pad(tensor, (0, tokens.shape[1] - tensor.shape[1]))

        def heard(_module: Any, _given: Any, output: Any) -> None:
            chances = getattr(output, "log_probs", None)
            if chances is None or not chances.requires_grad:
                return
            say("labels", labels.flatten(), flat)
            say("nll", -widened(chances).flatten(), flat)
            # FSDP averages gradients over all ranks.
            chances.register_hook(
                lambda grad: say("weight", (-widened(grad) * given).flatten(), flat)
            )

        hook = model.register_forward_hook(heard)
        try:
            yield
        finally:
            hook.remove()
