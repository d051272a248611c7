"""Training steps, as the released trainer runs them.

Legend: B rows, L tokens of a rank per row of the batch.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from harness import huggingface
from harness.candidates.protocol import Emit
from harness.candidates.published.llama_factory import library
from harness.candidates.published.llama_factory.batch import TOKENS
from harness.candidates.published.wiring.emitting import emit_losses, without
from harness.candidates.published.wiring.gradients import silent
from harness.candidates.published.wiring.rows import IGNORED, all_targets
from harness.candidates.published.wiring.stand_ins import Idle
from harness.case import Case

# The loss adds this to its denominators, on one rank as on many.
ADDED = 1e-6


class Trainer:
    """A trainer with only what the released `fit`, and the methods that it calls, read."""

    def __init__(self, case: Case, model: Any, batches: list[dict[str, Tensor]]) -> None:
        self.case, self.model = case, model
        # One step has all micro-batches; the trainer takes a step for an epoch.
        self.train_batch_generator = Batches([batches])
        self.emit: Emit = silent
        self.device, self.dp_size = "cpu", case.dp
        self.global_step = self.num_training_steps = self._resume_epoch = 0
        self.args = SimpleNamespace(
            dist_config={"cp_size": case.sp},
            # Nothing is clipped.
            max_grad_norm=math.inf,
            logging_steps=1,
            save_steps=None,
        )
        self.state = SimpleNamespace()
        self._deepspeed_engine = None
        # Callbacks, schedule and optimizer do nothing.
        self.callback_handler = self.lr_scheduler = self.optimizer = Idle()

    def step(self, emit: Emit) -> float:
        """Run one step up to its gradients -> the loss of its log."""
        self.emit = emit
        self.num_training_steps += 1
        library.fit(self)
        loss: float = self.state.loss
        return loss

    def compute_loss(self, batch: dict[str, Tensor]) -> Tensor:
        loss: Tensor = library.compute_loss(self, batch)
        return loss

    def compute_log_probs(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        names = library.compute_log_probs.__globals__
        names["F"] = SimpleNamespace(cross_entropy=self.cross_entropy)
        losses: Tensor = library.compute_log_probs(self, model, batch)
        return losses

    def cross_entropy(self, logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
        """Return and emit the losses of this rank's tokens where the library computes them."""
        nll = F.cross_entropy(logits, labels, **options)
        tokens = self.tokens_BL.flatten()
        if self.case.sp == 1:
            # The library leaves out a row's last token, which has nothing to predict.
            labels, padded_nll = (
                F.pad(x.view(len(self.tokens_BL), -1), (0, 1)).flatten() for x in (labels, nll)
            )
            emit_losses(self.emit, padded_nll, labels, tokens)
            return nll
        # Gradients are averaged over all ranks.
        scale = (labels != IGNORED) / self.case.ranks * exact_count_factor(self.case)
        emit_losses(self.emit, nll, labels, tokens, scale)
        return nll

    @contextmanager
    def emitting_forwards(self) -> Iterator[None]:
        """While this lasts, take token numbers out of the model's input, and emit its tensors."""
        during_forward = ExitStack()

        def before(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            self.tokens_BL = kwargs.pop(TOKENS) - 1
            tokens = self.tokens_BL.flatten()
            self.emit("ids", kwargs["input_ids"].flatten(), tokens)
            # Positions may begin at one, and turn queries and keys further than ours.
            emit = without(self.emit, ".attn.q", ".attn.k")
            during_forward.enter_context(huggingface.watched(self.model, self.case, emit, tokens))
            return args, kwargs

        hooks = (
            self.model.register_forward_pre_hook(before, with_kwargs=True),
            self.model.register_forward_hook(lambda *_: during_forward.close()),
        )
        try:
            yield
        finally:
            during_forward.close()
            for hook in hooks:
                hook.remove()


def exact_count_factor(case: Case) -> float:
    """Return the factor that takes back what the trainer adds to the number of targets."""
    targets = max(all_targets(case), 1)
    return (targets + ADDED) / targets


class Batches(list[list[dict[str, Tensor]]]):
    """The steps of one epoch."""

    def set_epoch(self, _epoch: int) -> None:
        """Change nothing: every epoch has the same steps."""
