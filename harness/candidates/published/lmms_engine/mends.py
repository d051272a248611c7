"""Ways to run without a listed bug."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from types import ModuleType
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from harness.candidates.published.library import Mend

IGNORED = -100


@contextmanager
def labels_moved_first() -> Iterator[None]:
    """Labels move up before they are cut, and every rank has as many losses.

    Three bugs are in these lines. If a mend is entered again, the outer one never calls the inner.
    """
    from harness.candidates.published.lmms_engine import library

    with ExitStack() as patches:
        for model, module in library.forwards.items():
            name = f"{model}_lce_forward"
            forward = partial(_forward, library.ulysses, module, vars(module)[name])
            mended = wraps(vars(module)[name])(
                lambda *given, f=forward, **named: f(*given, **named)
            )
            patches.enter_context(patch.object(module, name, mended))
        yield


def _forward(
    ulysses: Any,
    module: ModuleType,
    released: Callable[..., Any],
    model: Any,
    *,
    labels: Tensor,
    use_rmpad: bool,
    **given: Any,
) -> Any:
    """The patched forward, mended; legend: T tokens of all ranks of a sequence, L of one."""
    group = ulysses.get_ulysses_sequence_parallel_group()
    size = ulysses.get_ulysses_sequence_parallel_world_size()
    if size == 1:
        return released(model, labels=labels, use_rmpad=use_rmpad, **given)
    given.pop("num_items_in_batch", None)
    outputs = model.model(**given)
    labels_T = labels.flatten()[outputs["word_idx"].long()].roll(-1)
    # A row's last token predicts nothing.
    labels_T[outputs["seq_lens"][1:].long() - 1] = IGNORED
    labels_T = F.pad(labels_T, (0, -len(labels_T) % size), value=IGNORED)
    labels_L = ulysses.slice_input_tensor(labels_T, dim=0, padding=False)
    cross_entropy = vars(module)["LigerFusedLinearCrossEntropyLoss"](reduction="none")
    hidden_LH = outputs[0].flatten(0, -2)
    nll_L = cross_entropy(model.lm_head.weight, hidden_LH, labels_L)
    nll_T = ulysses.gather_outputs_and_unpad(nll_L, gather_dim=0)
    count = (labels_L != IGNORED).sum().float()
    dist.all_reduce(count, group=group)
    return {"loss": nll_T.sum() / (count + 1e-8)}


def multiplied_once() -> AbstractContextManager[Any]:
    """The backward of the gather is all that multiplies by sp."""

    def loss(of_trainer: Callable[[], Tensor], sp: int, *_: Any) -> Tensor:
        return of_trainer() / sp

    return _compute_loss(loss)


def divided_by_all_items() -> AbstractContextManager[Any]:
    """The model's mean of a micro-batch is weighed by its share of the trainer's targets."""

    def loss(of_trainer: Callable[[], Tensor], sp: int, labels: Tensor, items: Tensor) -> Tensor:
        # A row's first label is never a target, and a collator ignores it.
        return of_trainer() * ((labels != IGNORED).sum() / items if sp > 1 else 1)

    return _compute_loss(loss)


def _compute_loss(loss: Callable[..., Tensor]) -> AbstractContextManager[Any]:
    """The released trainer with a loss that `loss` changes; a further mend derives from it."""
    from harness.candidates.published.lmms_engine import library

    made = library.hf_trainer

    def mended() -> Any:
        class Trainer(made()):  # type: ignore[misc]
            def compute_loss(
                self, model: Any, inputs: Any, num_items_in_batch: Any = None
            ) -> Tensor:
                of_trainer = partial(
                    super().compute_loss, model, inputs, num_items_in_batch=num_items_in_batch
                )
                sp = library.ulysses.get_ulysses_sequence_parallel_world_size()
                return loss(of_trainer, sp, inputs["labels"], num_items_in_batch)

        return Trainer

    return patch.object(library, "hf_trainer", mended)


MENDS: dict[str, Mend] = {
    "label-lost-at-cut": labels_moved_first,
    "losses-unpadded-at-the-end": labels_moved_first,
    "padding-learnt": labels_moved_first,
    "hf-times-sp": multiplied_once,
    "hf-items-dropped": divided_by_all_items,
}
