"""Layouts in which ranks hold unequal numbers of tokens, and attention that gathers tensors.

Only `KeysGatheredEvenly` pads. In all others a rank holds as many tokens as its layout gives it,
which may be none.

Legend: T tokens of the stream, L tokens on this rank, N heads, K kv heads, M of the heads on this
rank, H head dim.
"""

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed import _functional_collectives as functional

from harness.candidates import Rank
from harness.candidates.bank import benign
from harness.candidates.own.benign.partials import attend_partially, join_partials
from harness.candidates.own.native import LocalDialect
from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.ulysses import Shard, Stream
from harness.case import Case

# torch 2.13 renamed it.
ALL_GATHER: Any = getattr(
    functional, "all_gather_single_autograd", functional.all_gather_tensor_autograd
)


class FreeLayout(LocalDialect):
    """Each rank holds any tokens of the stream in any order, as `places` lists them."""

    def places(self, total: int, sp: int) -> list[Tensor]:
        """List the places in the stream that each rank holds; by default consecutive ones."""
        return list(torch.arange(total).tensor_split(sp))

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:  # noqa: ARG002 - no pad id
        own_L = self.places(len(stream.ids_T), rank.sp.size())[rank.sp_index]
        return Shard(
            ids_L=stream.ids_T[own_L],
            positions_L=stream.positions_T[own_L],
            labels_L=stream.labels_T[own_L],
            tokens_L=stream.tokens_T[own_L],
            positions_TP=stream.positions_T,
            pad=0,
        )

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:
        return weights_T[self.places(len(weights_T), rank.sp.size())[rank.sp_index]]


def zigzag(total: int, sp: int) -> list[Tensor]:
    """Give each rank a piece of the front and its mirror image at the back."""
    pieces = torch.arange(total).tensor_split(2 * sp)
    return [torch.cat((pieces[r], pieces[-1 - r])) for r in range(sp)]


class GatherPieces(torch.autograd.Function):
    """Gather the pieces of all ranks, of any length; backward sums the gradients of each."""

    @staticmethod
    def forward(ctx: Any, x_L: Tensor, lengths: list[int], group: ProcessGroup) -> Tensor:
        ctx.lengths, ctx.group = lengths, group
        return gather(x_L, lengths, group)

    @staticmethod
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor, None, None]:
        return sum_and_scatter(grad_T, ctx.lengths, ctx.group), None, None


class SumAndScatter(torch.autograd.Function):
    """Sum over ranks what each has for all tokens; each rank gets the sums of its own tokens.

    This is the adjoint of `GatherPieces`.
    """

    @staticmethod
    def forward(ctx: Any, x_T: Tensor, lengths: list[int], group: ProcessGroup) -> Tensor:
        ctx.lengths, ctx.group = lengths, group
        return sum_and_scatter(x_T, lengths, group)

    @staticmethod
    def backward(ctx: Any, grad_L: Tensor) -> tuple[Tensor, None, None]:
        return gather(grad_L, ctx.lengths, ctx.group), None, None


def gather(x_L: Tensor, lengths: list[int], group: ProcessGroup) -> Tensor:
    pieces = [x_L.new_empty(length, *x_L.shape[1:]) for length in lengths]
    pieces[group.rank()] = x_L.contiguous()
    for owner, piece in enumerate(pieces):
        dist.broadcast(piece, group=group, group_src=owner)
    return torch.cat(pieces)


def sum_and_scatter(x_T: Tensor, lengths: list[int], group: ProcessGroup) -> Tensor:
    pieces: list[Tensor] = [piece.contiguous().clone() for piece in x_T.split(lengths)]
    for owner, piece in enumerate(pieces):
        dist.reduce(piece, group=group, group_dst=owner)
    return pieces[group.rank()]


def apply(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    result: Tensor = function.apply(*inputs)
    return result


def repeat_heads(x_LKH: Tensor, heads: int) -> Tensor:
    """Repeat each kv head until there is one for each query head."""
    return x_LKH.repeat_interleave(heads // x_LKH.shape[1], 1)


class KeysGathered(FreeLayout):
    """Every rank gathers all keys and values, and attends with its own queries."""

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,  # noqa: ARG002 - one kernel for all
        rank: Rank,
    ) -> Tensor:
        places = self.places(segments.total, rank.sp.size())
        lengths = list(map(len, places))
        k_TKH, v_TKH = (apply(GatherPieces, x, lengths, rank.sp) for x in (k_LKH, v_LKH))
        allowed_LT = segments.allowed_TT[places[rank.sp_index]][:, torch.cat(places)]
        return join_partials([attend_partially(q_LNH, k_TKH, v_TKH, allowed_LT)], q_LNH)


@benign("uneven", looks_like="B02, uneven shards in an even exchange")
class Uneven(KeysGathered):
    """The first ranks hold one token more where the stream cannot be cut evenly."""


@benign("front-loaded", looks_like="a rank whose shard was lost")
class FrontLoaded(KeysGathered):
    """Ranks hold as much as the first one does until there is no more: the last may be empty."""

    def places(self, total: int, sp: int) -> list[Tensor]:
        size = -(-total // sp)
        return [torch.arange(min(r * size, total), min((r + 1) * size, total)) for r in range(sp)]


@benign("zigzag-uneven", looks_like="B15, labels in another order than tokens")
class ZigzagUneven(KeysGathered):
    """Each rank holds a piece of the front and its mirror at the back, and no two are alike."""

    def places(self, total: int, sp: int) -> list[Tensor]:
        return zigzag(total, sp)


@benign("striped", looks_like="B15, each label on another rank than its token")
class Striped(KeysGathered):
    """Tokens are dealt to ranks in turn."""

    def places(self, total: int, sp: int) -> list[Tensor]:
        return [torch.arange(total)[r::sp] for r in range(sp)]


@benign("keys-gathered", looks_like="no all-to-all at all")
class KeysGatheredEvenly(LocalDialect):
    """Keys and values of all ranks, padding included, come by torch's functional collectives."""

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,  # noqa: ARG002 - one kernel for all
        rank: Rank,
    ) -> Tensor:
        k_TKH, v_TKH = (ALL_GATHER(x.contiguous(), 0, rank.sp) for x in (k_LKH, v_LKH))
        allowed_LT = segments.allowed_TT.chunk(rank.sp.size())[rank.sp_index]
        return join_partials([attend_partially(q_LNH, k_TKH, v_TKH, allowed_LT)], q_LNH)


@benign("queries-gathered", looks_like="keys that never meet the queries of other ranks")
class QueriesGathered(FreeLayout):
    """Queries of all ranks come to each rank's keys, and what they find there goes back."""

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,  # noqa: ARG002 - one kernel for all
        rank: Rank,
    ) -> Tensor:
        places = self.places(segments.total, rank.sp.size())
        lengths = list(map(len, places))
        q_TNH = apply(GatherPieces, q_LNH, lengths, rank.sp)
        allowed_TL = segments.allowed_TT[:, places[rank.sp_index]]
        sums, totals, highest = attend_partially(q_TNH, k_LKH, v_LKH, allowed_TL)
        top = highest.clone()
        dist.all_reduce(top, dist.ReduceOp.MAX, group=rank.sp)
        found = torch.cat((sums, totals), -1) * (highest - top).exp()
        own = apply(SumAndScatter, found.transpose(0, 1), lengths, rank.sp)
        return (own[..., :-1] / own[..., -1:]).to(q_LNH.dtype)


@benign("head-parallel", looks_like="every rank computes on all tokens")
class HeadParallel(FreeLayout):
    """Each rank has some heads only, to which all tokens come; what they say is summed up."""

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,  # noqa: ARG002 - one kernel for all
        rank: Rank,
    ) -> Tensor:
        sp, heads = rank.sp.size(), q_LNH.shape[1]
        lengths = list(map(len, self.places(segments.total, sp)))
        every = (q_LNH, repeat_heads(k_LKH, heads), repeat_heads(v_LKH, heads))
        q, k, v = (
            apply(GatherPieces, x, lengths, rank.sp).chunk(sp, 1)[rank.sp_index] for x in every
        )
        out_TMH = join_partials([attend_partially(q, k, v, segments.allowed_TT)], q)
        parts = [torch.zeros_like(out_TMH) for _ in range(sp)]
        parts[rank.sp_index] = out_TMH
        return apply(SumAndScatter, torch.cat(parts, 1), lengths, rank.sp)
