"""The release without each of its listed bugs."""

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
from harness.candidates.published.wiring.rows import IGNORED


@contextmanager
def labels_shifted_first() -> Iterator[None]:
    """While this lasts, labels are shifted before the cut, and all ranks have equally many losses.

    Three bugs are in these lines. If this is entered again, only the last one entered runs.
    """
    from harness.candidates.published.lmms_engine import library

    with ExitStack() as patches:
        for model, module in library.forwards.items():
            name = f"{model}_lce_forward"
            forward = partial(_forward, library.ulysses, module, vars(module)[name])
            mended = wraps(vars(module)[name])(
                lambda *args, f=forward, **kwargs: f(*args, **kwargs)
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
    **inputs: Any,
) -> Any:
    """Run the patched forward, mended; legend: T tokens of all ranks of a sequence, L of one."""
    group = ulysses.get_ulysses_sequence_parallel_group()
    size = ulysses.get_ulysses_sequence_parallel_world_size()
    if size == 1:
        return released(model, labels=labels, use_rmpad=use_rmpad, **inputs)
    inputs.pop("num_items_in_batch", None)
    outputs = model.model(**inputs)
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
    """While this lasts, only the backward of the gather multiplies by sp."""

    def loss(compute_released: Callable[[], Tensor], sp: int, *_: Any) -> Tensor:
        return compute_released() / sp

    return _compute_loss(loss)


def divided_by_all_items() -> AbstractContextManager[Any]:
    """While this lasts, a micro-batch's mean is weighed by its share of the trainer's targets."""

    def loss(
        compute_released: Callable[[], Tensor], sp: int, labels: Tensor, items: Tensor
    ) -> Tensor:
        # A row's first label is never a target, and a collator ignores it.
        return compute_released() * ((labels != IGNORED).sum() / items if sp > 1 else 1)

    return _compute_loss(loss)


def _compute_loss(loss: Callable[..., Tensor]) -> AbstractContextManager[Any]:
    """While this lasts, `loss` changes the released trainer's loss; mends can be combined."""
    from harness.candidates.published.lmms_engine import library

    make_released = library.hf_trainer

    def make_mended() -> Any:
        class Trainer(make_released()):  # type: ignore[misc]
            def compute_loss(
                self, model: Any, inputs: Any, num_items_in_batch: Any = None
            ) -> Tensor:
                compute_released = partial(
                    super().compute_loss, model, inputs, num_items_in_batch=num_items_in_batch
                )
                sp = library.ulysses.get_ulysses_sequence_parallel_world_size()
                return loss(compute_released, sp, inputs["labels"], num_items_in_batch)

        return Trainer

    return patch.object(library, "hf_trainer", make_mended)


MENDS: dict[str, Mend] = {
    "label-lost-at-cut": labels_shifted_first,
    "losses-unpadded-at-the-end": labels_shifted_first,
    "padding-learnt": labels_shifted_first,
    "hf-times-sp": multiplied_once,
    "hf-items-dropped": divided_by_all_items,
}
