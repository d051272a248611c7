"""Three choices that depend on each other: a rank's loss, its backward, and the divisor.

The loss may be whole or a share, backward may multiply it or not, and the reduction may divide by
a number of ranks or not. Any two choices are free; the third follows from them. A line that is
right in one class is wrong in the next.

Legend: L tokens on this rank, T tokens of the padded stream.
"""

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import ProcessGroup

from harness.candidates import Rank
from harness.candidates.bank import benign
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.candidates.own.native.rows import Batch
from harness.candidates.own.native.training import sum_over
from harness.candidates.own.native.ulysses import GatherTokens, Stream
from harness.case import Case


@benign("sum-of-divided", looks_like="B101, a mean paid for in advance before a sum")
class SumOfDivided(GatherDialect):
    """The whole loss on each rank is divided by their number, and gradients are summed."""

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        whole = super().loss(case, batch, stream, nll_L, targets, rank)
        return whole / rank.world.size()

    def divisor(self, rank: Rank) -> int:  # noqa: ARG002 - a sum has the same divisor on any mesh
        return 1


@benign("mean-of-multiplied", looks_like="B121, a loss multiplied by a number of ranks")
class MeanOfMultiplied(LocalDialect):
    """This rank's share of the loss is multiplied by all ranks, and gradients are averaged."""

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        share = super().loss(case, batch, stream, nll_L, targets, rank)
        return share * rank.world.size()

    def divisor(self, rank: Rank) -> int:
        return rank.world.size()


@benign("own-piece-put-back", looks_like="B102, a gather whose backward is not scaled")
class OwnPiecePutBack(GatherDialect):
    """Losses are gathered outside the graph and this rank's put back; peers' gradients add up."""

    def gather_losses(self, nll_L: Tensor, rank: Rank) -> Tensor:
        pieces = [torch.empty_like(nll_L) for _ in range(rank.sp.size())]
        dist.all_gather(pieces, nll_L.detach(), group=rank.sp)
        pieces[rank.sp_index] = nll_L
        return torch.cat(pieces)

    def divisor(self, rank: Rank) -> int:
        return rank.dp.size()

    def reported_loss(self, total: Tensor, rank: Rank) -> Tensor:
        return sum_over(total, rank.world) / rank.world.size()


class GatherSummedBack(GatherTokens):
    """A gather whose backward is its adjoint: it sums all peers' gradients of this piece."""

    @staticmethod
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor, None]:
        group: ProcessGroup = ctx.group
        grad_L = torch.empty_like(grad_T[: len(grad_T) // group.size()])
        dist.reduce_scatter_tensor(grad_L, grad_T.contiguous(), group=group)
        return grad_L, None


@benign("gather-summed-back", looks_like="B101, gradients of a replicated loss added up")
class GatherSummedBackAveraged(GatherDialect):
    """The gather of losses goes back as a reduce-scatter, and gradients are averaged."""

    def gather_losses(self, nll_L: Tensor, rank: Rank) -> Tensor:
        nll_T: Tensor = GatherSummedBack.apply(nll_L, rank.sp)  # type: ignore[no-untyped-call]
        return nll_T


class SumBothWays(torch.autograd.Function):
    """Sum a number over a group; backward sums the gradients of all peers."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return sum_over(value, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return sum_over(grad, ctx.group), None


@benign("loss-summed-both-ways", looks_like="B104, a sum whose backward sums again")
class LossSummedBothWays(LocalDialect):
    """The loss is summed over peers inside the graph, and gradients are averaged over them."""

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        share = super().loss(case, batch, stream, nll_L, targets, rank)
        whole: Tensor = SumBothWays.apply(share, rank.sp)  # type: ignore[no-untyped-call]
        return whole

    def divisor(self, rank: Rank) -> int:
        return rank.sp.size()


@benign("loss-summed-forward-only", looks_like="B103, a sum that backward does not know")
class LossSummedForwardOnly(LocalDialect):
    """The loss is summed over peers outside the graph, for the eye; gradients are summed."""

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        share = super().loss(case, batch, stream, nll_L, targets, rank)
        return share + (sum_over(share, rank.sp) - share).detach()

    def reported_loss(self, total: Tensor, rank: Rank) -> Tensor:
        return super().reported_loss(total, rank) / rank.sp.size()


@benign("scaled-up-and-down", looks_like="B89, gradients a thousand times too large")
class ScaledUpAndDown(LocalDialect):
    """Backward begins with a power of two times the loss; gradients are divided by it again."""

    SCALE = 2**10

    def backward(self, loss: Tensor) -> None:
        super().backward(loss * self.SCALE)

    def divisor(self, rank: Rank) -> int:
        return super().divisor(rank) * self.SCALE

    def reported_loss(self, total: Tensor, rank: Rank) -> Tensor:
        return super().reported_loss(total, rank) * self.SCALE
