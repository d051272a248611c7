"""The release without each of its listed bugs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from torch import Tensor

from harness.candidates.published.library import Mend

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def weighted_backward() -> AbstractContextManager[Any]:
    """While this lasts, a rank's mean has the same weight in backward as in the loss."""
    from torch.autograd import Function
    from xtuner.parallel.sequence import reduce_loss

    forward = reduce_loss._ReduceLoss.forward

    class ReduceLoss(Function):
        @staticmethod
        def forward(ctx: Any, mean: Tensor, count: Tensor, group: "ProcessGroup") -> Tensor:
            own_count = count.clone()
            loss: Tensor = forward(ctx, mean, count, group)
            # Gradients are averaged over ranks; `forward` has summed `count` over them.
            ctx.share = group.size() * int(own_count) / int(count)
            return loss

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
            return gradient * ctx.share, None, None

    return patch.object(reduce_loss, "_ReduceLoss", ReduceLoss)


@contextmanager
def labels_shifted_first() -> Iterator[None]:
    """While this lasts, labels are shifted before the cut, and the model does not shift them."""
    from harness.candidates.published.wiring.rows import shifted
    from harness.candidates.published.xtuner import candidate

    cut = candidate._Finetune._split_for_sequence_parallel

    def split(data: candidate.Data) -> candidate.Data:
        data["labels"] = shifted(data["labels"])
        own_part: candidate.Data = cut(data)
        return own_part

    with (
        patch.object(candidate._Finetune, "_split_for_sequence_parallel", staticmethod(split)),
        patch.object(candidate, "shifted", lambda labels: labels),
    ):
        yield


MENDS: dict[str, Mend] = {
    "loss-mean-of-means": weighted_backward,
    "label-lost-at-cut": labels_shifted_first,
}
