"""Training steps as the released trainer takes them.

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
from harness.candidates.published.llama_factory.batch import IGNORED, TOKENS
from harness.candidates.published.wiring.gradients import silent
from harness.candidates.published.wiring.rows import all_targets
from harness.case import Case

# The loss adds this to its denominators, on one rank as on many.
ADDED = 1e-6


class Trainer:
    """A trainer with only what the released `fit`, and the methods that it calls, read."""

    def __init__(self, case: Case, model: Any, batches: list[dict[str, Tensor]]) -> None:
        self.case, self.model = case, model
        # One step has all micro-batches, and takes them for an epoch.
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
        """One step up to its gradients, and the loss that its log has."""
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
        """Emit the losses of this rank's tokens where the library computes them."""
        nll = F.cross_entropy(logits, labels, **options)
        tokens, emit = self.tokens_BL.flatten(), self.emit
        if self.case.sp == 1:
            # The library leaves out a row's last token, which has nothing to predict.
            whole = (F.pad(x.view(len(self.tokens_BL), -1), (0, 1)) for x in (labels, nll))
            for key, tensor in zip(("labels", "nll"), whole, strict=True):
                emit(key, tensor.flatten(), tokens)
            return nll
        emit("labels", labels, tokens)
        emit("nll", nll, tokens)
        scale = (labels != IGNORED) / self.case.ranks * in_full(self.case)
        if nll.requires_grad:
            # Gradients are averaged over all ranks.
            nll.register_hook(lambda grad: emit("weight", grad * scale, tokens))
        return nll

    @contextmanager
    def seen(self) -> Iterator[None]:
        """Take token numbers out of what the model is given, and emit what it computes."""
        during = ExitStack()

        def before(_: Any, given: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            self.tokens_BL = named.pop(TOKENS) - 1
            tokens, emit = self.tokens_BL.flatten(), self.emit
            emit("ids", named["input_ids"].flatten(), tokens)

            def known(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
                # Positions may begin at one, and turn queries and keys further than ours.
                if not key.endswith((".attn.q", ".attn.k")):
                    emit(key, tensor, tokens)

            during.enter_context(huggingface.watched(self.model, self.case, known, tokens))
            return given, named

        hooks = (
            self.model.register_forward_pre_hook(before, with_kwargs=True),
            self.model.register_forward_hook(lambda *_: during.close()),
        )
        try:
            yield
        finally:
            during.close()
            for hook in hooks:
                hook.remove()


def in_full(case: Case) -> float:
    """The factor that takes back what the trainer adds to the number of targets."""
    targets = max(all_targets(case), 1)
    return (targets + ADDED) / targets


class Batches(list[list[dict[str, Tensor]]]):
    """Steps of one epoch."""

    def set_epoch(self, _epoch: int) -> None:
        """Every epoch has the same steps."""


class Idle:
    """Takes every call and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name == "get_last_lr":
            return lambda: [0.0]
        return lambda *_, **__: None
