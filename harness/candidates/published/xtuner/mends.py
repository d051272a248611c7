"""Ways to run without a listed bug."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from torch import Tensor

from harness.candidates.published.library import Mend

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def weighted_backward() -> AbstractContextManager[Any]:
    """A rank's mean has the weight in backward that it has in the loss."""
    from torch.autograd import Function
    from xtuner.parallel.sequence import reduce_loss

    forward = reduce_loss._ReduceLoss.forward

    class ReduceLoss(Function):
        @staticmethod
        def forward(ctx: Any, mean: Tensor, count: Tensor, group: "ProcessGroup") -> Tensor:
            own = count.clone()
            loss: Tensor = forward(ctx, mean, count, group)
            # Gradients are averaged over ranks; by now `count` is that of all of them.
            ctx.share = group.size() * int(own) / int(count)
            return loss

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
            return gradient * ctx.share, None, None

    return patch.object(reduce_loss, "_ReduceLoss", ReduceLoss)


@contextmanager
def labels_moved_first() -> Iterator[None]:
    """Labels move up before they are cut, and the model leaves them where they are."""
    from harness.candidates.published.xtuner import candidate

    moved, cut = candidate.following, candidate._Finetune._split_for_sequence_parallel

    def split(data: candidate.Data) -> candidate.Data:
        data["labels"] = moved(data["labels"])
        found: candidate.Data = cut(data)
        return found

    with (
        patch.object(candidate._Finetune, "_split_for_sequence_parallel", staticmethod(split)),
        patch.object(candidate, "following", lambda labels: labels),
    ):
        yield


MENDS: dict[str, Mend] = {
    "loss-mean-of-means": weighted_backward,
    "label-lost-at-cut": labels_moved_first,
}
