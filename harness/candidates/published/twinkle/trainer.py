"""One training step as twinkle's `TransformersModel` takes it.

Legend: B rows, L tokens of a rank per row, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn
from torch.nn import functional as F

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.twinkle import library
from harness.candidates.published.twinkle.batch import Feature
from harness.candidates.published.wiring.decoder import IGNORED
from harness.candidates.published.wiring.rows import PADDING
from harness.case import Case

TransformersModel: Any = library.trainer.TransformersModel


class Exact(float):
    """A number of which a log shows every digit."""

    def __add__(self, other: float) -> "Exact":
        return Exact(float(self) + other)

    __radd__ = __add__

    def __truediv__(self, other: float) -> "Exact":
        return Exact(float(self) / other)

    def __format__(self, _spec: str) -> str:
        return repr(float(self))


class Trainer(TransformersModel):  # type: ignore[misc]
    """The released class around a model that is there already."""

    # The library makes it where ranks share a sequence.
    sp_strategy: Any = None

    def __init__(self, case: Case, rank: Rank, model: Any, loss: Any, **how: Any) -> None:
        nn.Module.__init__(self)
        self.case = case
        self.model, self.hf_config = model, model.config
        self.mixed_precision = "no"
        self.device_mesh = library.sharing.DeviceMesh.from_sizes(
            dp_size=case.ranks, ulysses_size=case.sp
        )
        self.strategy = SimpleNamespace(
            capture_pre_ep_state_if_needed=lambda *_, **__: None,
            wrap_model=lambda model: model,
            unwrap_model=lambda model: model,
        )
        self._model_wrapped = self._enable_expert_parallel = False
        self._enable_sp, self.tokenizer_id = case.sp > 1, None
        self._ensure_sp_strategy()
        if self.sp_strategy is not None:
            self.sp_strategy._tokenizer = SimpleNamespace(pad_token_id=case.pad_id)
        self.group: Any = library.trainer.OptimizerGroup(
            loss_instance=loss,
            processor=library.trainer.InputProcessor(**how),
            # The library would make this group of all ranks that there are.
            _dp_group=rank.world,
            _device_mesh=self.device_mesh,
        )
        self.metric = library.metrics.LossMetric(self.device_mesh, rank.world)
        self.group.train_status.metrics = [self.metric]
        # Its first step takes a micro-batch more than is asked for; each that follows does not.
        self.group.cur_step = 1
        self.optimizer_group = {"": self.group}
        self.active_group = ""
        # The number by which gradients are divided.
        self.divisor = 1.0
        # Gradients of the losses of tokens, and the tokens' numbers.
        self.weights: list[tuple[Tensor, Tensor]] = []
        self._lazy_wrap_model()

    def cut(self, features: list[Feature], name: str) -> Tensor:
        """A field of the collated batch, padded and cut as labels are."""
        given = [row | {"labels": row[name]} for row in features]
        cut: Tensor = self.group.processor(given, sp_strategy=self.sp_strategy)["labels"]
        return cut

    def micro_batch(self, features: list[Feature], task: str, emit: Emit) -> None:
        """Forward, loss and backward."""
        tokens_BL = self.cut(features, "tokens")
        tokens_BL = tokens_BL.masked_fill(tokens_BL == IGNORED, PADDING)
        labels_BL = self.cut(features, "labels")
        emit("labels", labels_BL.flatten(), tokens_BL.flatten())
        rows = [{name: row[name] for name in row if name != "tokens"} for row in features]
        with ExitStack() as telling:
            telling.enter_context(huggingface.watched(self.model, self.case, emit, tokens_BL))
            telling.enter_context(told(self.model, emit, tokens_BL))
            telling.enter_context(self.losses_told(emit, labels_BL, tokens_BL))
            self.forward(inputs=rows, task=task)
        self.calculate_loss()
        self.backward(gradient_accumulation_steps=self.case.micro_batches)

    @contextmanager
    def losses_told(self, emit: Emit, labels_BL: Tensor, tokens_BL: Tensor) -> Iterator[None]:
        """Emit the loss of each token, from the logits that a rank has."""
        if not self.group.loss_instance.require_logps:
            norm, head = self.model.model.norm, self.model.lm_head

            def losses(_module: nn.Module, _given: Any, hidden: Tensor) -> None:
                logits = F.linear(hidden.detach(), head.weight.detach()).flatten(0, 1)
                nll = F.cross_entropy(logits, labels_BL.flatten(), reduction="none")
                emit("nll", nll, tokens_BL.flatten())

            handle = norm.register_forward_hook(losses)
            try:
                yield
            finally:
                handle.remove()
            return

        released = library.trainer.selective_log_softmax

        def log_softmax(logits: Tensor, index: Tensor, **named: Any) -> Tensor:
            logps_BL: Tensor = released(logits, index, **named)
            scale = (labels_BL != IGNORED) / self.case.ranks
            emit("nll", (-logps_BL * (labels_BL != IGNORED)).flatten(), tokens_BL.flatten())
            logps_BL.register_hook(
                lambda grad: self.weights.append(((-grad * scale).flatten(), tokens_BL.flatten()))
            )
            return logps_BL

        with patch.object(library.trainer, "selective_log_softmax", log_softmax):
            yield

    def divide(self, emit: Emit) -> None:
        """Divide gradients, as before an optimizer's step, and emit weights divided alike."""
        released = library.trainer.normalize_and_clip_grad_norm

        def normalize(parameters: Any, *, num_tokens: float, **named: Any) -> Any:
            self.divisor = num_tokens
            return released(parameters, num_tokens=num_tokens, **named)

        with patch.object(library.trainer, "normalize_and_clip_grad_norm", normalize):
            self.clip_grad_norm(float("inf"), gradient_accumulation_steps=self.case.micro_batches)
        for weight, tokens in self.weights:
            emit("weight", weight / self.divisor, tokens)
        self.weights.clear()

    def logged(self) -> float:
        """What a log of this step shows, with all digits."""
        return float(self.calculate_metric(is_training=True)["loss"])


@contextmanager
def told(model: Any, emit: Emit, tokens_BL: Tensor) -> Iterator[None]:
    """Emit ids and positions as they reach the model, cut and padded."""
    base, tokens = model.model, tokens_BL.flatten()
    handles = (
        base.embed_tokens.register_forward_pre_hook(
            lambda _, given: emit("ids", given[0].flatten(), tokens)
        ),
        base.rotary_emb.register_forward_pre_hook(
            lambda _, given, named: emit(
                "positions",
                named.get("position_ids", given[-1]).expand_as(tokens_BL).flatten(),
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
