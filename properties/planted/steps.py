"""Steps with one bug each, which the properties in `properties/step` must find.

The docstring of a class describes its bug, with its number in the catalogue if it has one.

Legend: B rows, S longest row, L tokens on this rank, T tokens of the stream, N heads, M heads on
this rank, H head dim, s peers.
"""

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import FunctionCtx
from torch.distributed import ProcessGroup

from harness.candidates import Rank
from harness.candidates.own.native import LocalDialect
from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.rows import Batch, Sample
from harness.candidates.own.native.training import sum_over
from harness.candidates.own.native.ulysses import GatherTokens, Shard, Stream, cut
from harness.case import Case
from properties.planted.probes import (
    NAN,
    Adjoint,
    GarbagePadding,
    Operator,
    OtherTail,
    Poisoned,
    Shape,
)


class OneWay(torch.autograd.Function):
    """B105: an exchange whose backward returns the gradient without exchanging it."""

    @staticmethod
    def forward(_ctx: FunctionCtx, x_sL: Tensor, group: ProcessGroup) -> Tensor:
        received_sL = torch.empty_like(x_sL)
        dist.all_to_all_single(received_sL, x_sL, group=group)
        return received_sL

    @staticmethod
    def backward(_ctx: FunctionCtx, grad_sL: Tensor) -> tuple[Tensor, None]:
        return grad_sL, None


class PlainGather(GatherTokens):
    """B102: the gather's backward is not scaled, though a mean over the ranks follows."""

    @staticmethod
    def backward(ctx: FunctionCtx, grad_T: Tensor) -> tuple[Tensor, None]:
        group: ProcessGroup = ctx.group  # type: ignore[attr-defined]
        return grad_T.chunk(group.size())[group.rank()], None


def as_operator(function: Any, shape: Shape, *, same_on_peers: bool = False) -> Operator:
    """Make an operator of an autograd function."""
    return Operator(lambda x, group: (function.apply(*x, group),), shape, same_on_peers)


class UnwrittenTail(LocalDialect):
    """B67: the output of attention after the last real token stays uninitialised."""

    name = "unwritten-tail"

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        self.real = int((shard.tokens_L >= 0).sum())
        return shard

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, segments: Segments, case: Case, rank: Rank
    ) -> Tensor:
        written_LNH = super().attend(q, k, v, segments, case, rank)
        out_LNH = torch.empty_like(written_LNH)
        out_LNH[: self.real] = written_LNH[: self.real]
        return out_LNH


class OnlyReal(torch.autograd.Function):
    """The identity; backward writes the gradient of the first tokens only."""

    @staticmethod
    def forward(ctx: FunctionCtx, x_LNH: Tensor, real: int) -> Tensor:
        ctx.real = real  # type: ignore[attr-defined]
        return x_LNH.clone()

    @staticmethod
    def backward(ctx: FunctionCtx, grad_LNH: Tensor) -> tuple[Tensor, None]:
        real: int = ctx.real  # type: ignore[attr-defined]
        out_LNH = torch.empty_like(grad_LNH)
        out_LNH[:real] = grad_LNH[:real]
        return out_LNH, None


class UnwrittenGradient(UnwrittenTail):
    """B67: the gradient of that output stays uninitialised there; the forward pass is exact."""

    name = "unwritten-gradient"

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, segments: Segments, case: Case, rank: Rank
    ) -> Tensor:
        out_LNH = LocalDialect.attend(self, q, k, v, segments, case, rank)
        cut_LNH: Tensor = OnlyReal.apply(out_LNH, self.real)  # type: ignore[no-untyped-call]
        return cut_LNH


class MaskFromIds(LocalDialect):
    """B23: padding is recognised by the id of a token instead of by the mask."""

    name = "mask-from-ids"

    def collate(self, case: Case, samples: list[Sample], rank: Rank) -> Batch:
        batch = super().collate(case, samples, rank)
        batch.attended_BS.logical_or_(batch.ids_BS != case.pad_id)
        batch.ids_BS.remainder_(case.vocab)
        return batch


class MaskFromGarbage(MaskFromIds, GarbagePadding):
    """As `MaskFromIds`, with other ids in the padding."""


class CountsTail(LocalDialect):
    """B83: pad tokens have a weight in the loss."""

    name = "counts-tail"

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        weights_T = self.weights(case, batch, stream, targets)
        weights_L = cut(weights_T, rank, 1)
        return (nll_L * weights_L).sum()


class CountsOtherTail(OtherTail, CountsTail):
    """As `CountsTail`, with other ids and labels in the padding."""


class Crossed(LocalDialect):
    """Every second rank starts two collectives in the opposite order; gloo does not hang."""

    name = "crossed"

    def reported_loss(self, total: Tensor, rank: Rank) -> Tensor:
        groups = [rank.sp, rank.world] if rank.index % 2 else [rank.world, rank.sp]
        flags = [torch.zeros(1, device=rank.device) for _ in groups]
        works = [
            dist.all_reduce(flag, group=group, async_op=True)
            for flag, group in zip(flags, groups, strict=True)
        ]
        for work in works:
            work.wait()
        return super().reported_loss(total, rank)


class InCircle(LocalDialect):
    """Neighbours sum over peers and replicas in opposite orders; no two share both groups."""

    name = "in-circle"

    def reported_loss(self, total: Tensor, rank: Rank) -> Tensor:
        odd = (rank.sp_index + rank.dp_index) % 2
        groups = [rank.sp, rank.dp] if odd else [rank.dp, rank.sp]
        works = [
            dist.all_reduce(torch.zeros(1, device=rank.device), group=group, async_op=True)
            for group in groups
        ]
        for work in works:
            work.wait()
        return super().reported_loss(total, rank)


class OtherShape(LocalDialect):
    """Every second rank sums the loss as a vector; no backend objects, since the bytes match."""

    name = "other-shape"

    def reported_loss(self, total: Tensor, rank: Rank) -> Tensor:
        return sum_over(total.view(1) if rank.index % 2 else total, rank.world)


class OtherDtype(LocalDialect):
    """Every second rank counts in floats; a zero has the same bytes in both dtypes."""

    name = "other-dtype"

    def reported_loss(self, total: Tensor, rank: Rank) -> Tensor:
        dtype = torch.float64 if rank.index % 2 else torch.int64
        sum_over(torch.zeros((), dtype=dtype, device=rank.device), rank.world)
        return super().reported_loss(total, rank)


ONE_WAY = Adjoint("one-way", {"exchange": as_operator(OneWay, lambda s: [(s, 3)])})
PLAIN_GATHER = Adjoint(
    "plain-gather", {"gather": as_operator(PlainGather, lambda _s: [(7,)], same_on_peers=True)}
)
UNWRITTEN_TAIL, POISONED_TAIL = UnwrittenTail(), Poisoned(UnwrittenTail(), NAN)
UNWRITTEN_GRADIENT = UnwrittenGradient()
POISONED_GRADIENT = Poisoned(UnwrittenGradient(), NAN)
MASK_FROM_IDS, MASK_FROM_GARBAGE = MaskFromIds(), MaskFromGarbage()
COUNTS_TAIL, COUNTS_OTHER_TAIL = CountsTail(), CountsOtherTail()
CROSSED, IN_CIRCLE = Crossed(), InCircle()
OTHER_SHAPE, OTHER_DTYPE = OtherShape(), OtherDtype()
