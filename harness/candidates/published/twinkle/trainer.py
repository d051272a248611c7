"""One training step, as twinkle's `TransformersModel` runs it.

Legend: B rows, L tokens of a rank per row, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn
from torch.nn import functional as F

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.twinkle import library
from harness.candidates.published.twinkle.batch import Feature
from harness.candidates.published.twinkle.released import Released
from harness.candidates.published.wiring.emitting import emitting_inputs
from harness.candidates.published.wiring.rows import IGNORED, PADDING
from harness.case import Case


class Trainer(Released):
    """The released class, which emits what it computes."""

    def __init__(self, case: Case, rank: Rank, model: Any, loss: Any, **options: Any) -> None:
        super().__init__(model, loss, rank.world, sp=case.sp, pad_id=case.pad_id, **options)
        self.case = case
        self.metric = library.metrics.LossMetric(self.device_mesh, rank.world)
        self.group.train_status.metrics = [self.metric]
        # The number by which gradients are divided.
        self.divisor = 1.0
        # Gradients of token losses, and the tokens' numbers.
        self.weights: list[tuple[Tensor, Tensor]] = []

    def cut(self, features: list[Feature], name: str) -> Tensor:
        """Return a field of the collated batch, padded and cut as labels are."""
        rows = [row | {"labels": row[name]} for row in features]
        field_BL: Tensor = self.group.processor(rows, sp_strategy=self.sp_strategy)["labels"]
        return field_BL

    def micro_batch(self, features: list[Feature], task: str, emit: Emit) -> None:
        """Run forward, loss and backward."""
        tokens_BL = self.cut(features, "tokens")
        tokens_BL = tokens_BL.masked_fill(tokens_BL == IGNORED, PADDING)
        labels_BL = self.cut(features, "labels")
        emit("labels", labels_BL.flatten(), tokens_BL.flatten())
        rows = [{name: row[name] for name in row if name != "tokens"} for row in features]
        needs_logits = self.group.loss_instance.require_logps
        emitting_losses = self.losses_of_log_probs if needs_logits else self.losses_of_hidden
        with (
            huggingface.watched(self.model, self.case, emit, tokens_BL),
            emitting_inputs(self.model, emit, tokens_BL),
            emitting_losses(emit, labels_BL, tokens_BL.flatten()),
        ):
            self.forward(inputs=rows, task=task)
        self.calculate_loss()
        self.backward(gradient_accumulation_steps=self.case.micro_batches)

    @contextmanager
    def losses_of_hidden(self, emit: Emit, labels_BL: Tensor, tokens: Tensor) -> Iterator[None]:
        """While this lasts, emit each token's loss, from the last hidden states."""
        norm, head = self.model.model.norm, self.model.lm_head

        def after_norm(_module: nn.Module, _args: Any, hidden: Tensor) -> None:
            logits = F.linear(hidden.detach(), head.weight.detach()).flatten(0, 1)
            emit("nll", F.cross_entropy(logits, labels_BL.flatten(), reduction="none"), tokens)

        handle = norm.register_forward_hook(after_norm)
        try:
            yield
        finally:
            handle.remove()

    @contextmanager
    def losses_of_log_probs(self, emit: Emit, labels_BL: Tensor, tokens: Tensor) -> Iterator[None]:
        """While this lasts, emit each token's loss, and keep its gradient."""
        released, is_target_BL = library.trainer.selective_log_softmax, labels_BL != IGNORED

        def log_softmax(logits: Tensor, index: Tensor, **options: Any) -> Tensor:
            log_probs_BL: Tensor = released(logits, index, **options)
            scale = is_target_BL / self.case.ranks
            emit("nll", (-log_probs_BL * is_target_BL).flatten(), tokens)
            log_probs_BL.register_hook(
                lambda grad: self.weights.append(((-grad * scale).flatten(), tokens))
            )
            return log_probs_BL

        with patch.object(library.trainer, "selective_log_softmax", log_softmax):
            yield

    def divide(self, emit: Emit) -> None:
        """Divide gradients as before an optimizer's step, and emit the weights divided alike."""
        released = library.trainer.normalize_and_clip_grad_norm

        def normalize(parameters: Any, *, num_tokens: float, **options: Any) -> Any:
            self.divisor = num_tokens
            return released(parameters, num_tokens=num_tokens, **options)

        with patch.object(library.trainer, "normalize_and_clip_grad_norm", normalize):
            self.clip_grad_norm(float("inf"), gradient_accumulation_steps=self.case.micro_batches)
        for weight, tokens in self.weights:
            emit("weight", weight / self.divisor, tokens)
        self.weights.clear()

    def logged(self) -> float:
        """Return the loss that a log of this step shows, with all digits."""
        return float(self.calculate_metric(is_training=True)["loss"])
