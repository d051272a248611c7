"""Sequences shared in other ways than by heads, and tokens held in other ways than evenly.

But for one of them nobody pads: a rank holds as many tokens as its layout gives it, or none.

Legend: T tokens of the stream, L tokens on this rank, X tokens of one rank, N heads, K kv heads, M
and C of them on this rank, H head dim.
"""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed import _functional_collectives as functional

from harness.candidates import Rank
from harness.candidates.bank import benign
from harness.candidates.own.benign.attention import LOWEST, heads_first, scale
from harness.candidates.own.native import LocalDialect
from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.ulysses import Shard, Stream
from harness.case import Case
from harness.reference.decoder import at_least_fp32

# It has another name since torch 2.13.
ALL_GATHER: Any = getattr(
    functional, "all_gather_single_autograd", functional.all_gather_tensor_autograd
)


class Held(LocalDialect):
    """Each rank holds some tokens of the stream, in an order of its own."""

    @abstractmethod
    def places(self, total: int, sp: int) -> list[Tensor]:
        """Of a stream, the places that each rank holds."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:  # noqa: ARG002 - no pad id
        mine_L = self.places(len(stream.ids_T), rank.sp.size())[rank.sp_index]
        return Shard(
            ids_L=stream.ids_T[mine_L],
            positions_L=stream.positions_T[mine_L],
            labels_L=stream.labels_T[mine_L],
            tokens_L=stream.tokens_T[mine_L],
            positions_TP=stream.positions_T,
            pad=0,
        )

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:
        return weights_T[self.places(len(weights_T), rank.sp.size())[rank.sp_index]]


class Gathered(torch.autograd.Function):
    """The pieces of all ranks, however long each is; backward sums up what came of each."""

    @staticmethod
    def forward(ctx: Any, x_L: Tensor, lengths: list[int], group: ProcessGroup) -> Tensor:
        ctx.lengths, ctx.group = lengths, group
        return gather(x_L, lengths, group)

    @staticmethod
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor, None, None]:
        return sum_up(grad_T, ctx.lengths, ctx.group), None, None


class SummedUp(torch.autograd.Function):
    """The other way round: of what each rank has of all tokens, the sum goes to who holds them."""

    @staticmethod
    def forward(ctx: Any, x_T: Tensor, lengths: list[int], group: ProcessGroup) -> Tensor:
        ctx.lengths, ctx.group = lengths, group
        return sum_up(x_T, lengths, group)

    @staticmethod
    def backward(ctx: Any, grad_L: Tensor) -> tuple[Tensor, None, None]:
        return gather(grad_L, ctx.lengths, ctx.group), None, None


def gather(x_L: Tensor, lengths: list[int], group: ProcessGroup) -> Tensor:
    pieces = [x_L.new_empty(length, *x_L.shape[1:]) for length in lengths]
    pieces[group.rank()] = x_L.contiguous()
    for owner, piece in enumerate(pieces):
        dist.broadcast(piece, group=group, group_src=owner)
    return torch.cat(pieces)


def sum_up(x_T: Tensor, lengths: list[int], group: ProcessGroup) -> Tensor:
    pieces: list[Tensor] = [piece.contiguous().clone() for piece in x_T.split(lengths)]
    for owner, piece in enumerate(pieces):
        dist.reduce(piece, group=group, group_dst=owner)
    return pieces[group.rank()]


class KeysGathered(Held):
    """Keys and values of all ranks come to each; queries stay where they are."""

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
        k_TKH, v_TKH = (apply(Gathered, x, lengths, rank.sp) for x in (k_LKH, v_LKH))
        allowed_LT = segments.allowed_TT[places[rank.sp_index]][:, torch.cat(places)]
        return merged([partial_of(q_LNH, k_TKH, v_TKH, allowed_LT)], q_LNH)


def apply(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    result: Tensor = function.apply(*inputs)
    return result


# What queries find in one block of keys: the sum of values, that of weights, the highest score.
Partial = tuple[Tensor, Tensor, Tensor]


def partial_of(q_LNH: Tensor, k_XKH: Tensor, v_XKH: Tensor, allowed_LX: Tensor) -> Partial:
    q_NLH, k_NXH, v_NXH = map(at_least_fp32, heads_first(q_LNH, k_XKH, v_XKH))
    scores_NLX = (q_NLH @ k_NXH.mT * scale(q_LNH)).masked_fill(~allowed_LX, LOWEST)
    lowest_NL1 = scores_NLX.new_full((*scores_NLX.shape[:2], 1), LOWEST)
    highest_NL1 = torch.cat((scores_NLX.detach(), lowest_NL1), -1).amax(-1, keepdim=True)
    weights_NLX = (scores_NLX - highest_NL1).exp() * allowed_LX
    return weights_NLX @ v_NXH, weights_NLX.sum(-1, keepdim=True), highest_NL1


def merged(partials: list[Partial], q_LNH: Tensor) -> Tensor:
    """As if all blocks had been one -> out_LNH."""
    highest = torch.stack([each[2] for each in partials]).amax(0)
    sums = sum(each[0] * (each[2] - highest).exp() for each in partials)
    totals = sum(each[1] * (each[2] - highest).exp() for each in partials)
    assert isinstance(sums, Tensor)
    return (sums / totals).to(q_LNH.dtype).transpose(0, 1)


@benign("uneven", looks_like="B02, uneven shards in an even exchange")
class Uneven(KeysGathered):
    """The first ranks hold one token more where the stream cannot be cut evenly."""

    def places(self, total: int, sp: int) -> list[Tensor]:
        return list(torch.arange(total).tensor_split(sp))


@benign("front-loaded", looks_like="a rank whose shard was lost")
class FrontLoaded(KeysGathered):
    """Ranks hold as much as the first one does until there is no more: the last may be empty."""

    def places(self, total: int, sp: int) -> list[Tensor]:
        each = -(-total // sp)
        return [torch.arange(min(r * each, total), min((r + 1) * each, total)) for r in range(sp)]


@benign("zigzag-uneven", looks_like="B15, labels in another order than tokens")
class ZigzagUneven(KeysGathered):
    """Each rank holds a piece of the front and its mirror at the back, and no two are alike."""

    def places(self, total: int, sp: int) -> list[Tensor]:
        pieces = torch.arange(total).tensor_split(2 * sp)
        return [torch.cat((pieces[r], pieces[-1 - r])) for r in range(sp)]


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
        return merged([partial_of(q_LNH, k_TKH, v_TKH, allowed_LT)], q_LNH)


@benign("queries-gathered", looks_like="keys that never meet the queries of other ranks")
class QueriesGathered(Held):
    """Queries of all ranks come to each rank's keys, and what they find there goes back."""

    def places(self, total: int, sp: int) -> list[Tensor]:
        return list(torch.arange(total).tensor_split(sp))

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
        q_TNH = apply(Gathered, q_LNH, lengths, rank.sp)
        allowed_TL = segments.allowed_TT[:, places[rank.sp_index]]
        sums, totals, highest = partial_of(q_TNH, k_LKH, v_LKH, allowed_TL)
        top = highest.clone()
        dist.all_reduce(top, dist.ReduceOp.MAX, group=rank.sp)
        found = torch.cat((sums, totals), -1) * (highest - top).exp()
        own = apply(SummedUp, found.transpose(0, 1), lengths, rank.sp)
        return (own[..., :-1] / own[..., -1:]).to(q_LNH.dtype)


class Passed(torch.autograd.Function):
    """What the neighbour on one side has; gradients go back to the other side."""

    @staticmethod
    def forward(
        ctx: Any, x_X: Tensor, length: int, ring: list[int], group: ProcessGroup
    ) -> Tensor:
        ctx.length, ctx.ring, ctx.group = len(x_X), ring, group
        return swapped(x_X, length, ring, group, ahead=True)

    @staticmethod
    def backward(ctx: Any, grad_X: Tensor) -> tuple[Tensor, None, None, None]:
        grad = swapped(grad_X, ctx.length, ctx.ring, ctx.group, ahead=False)
        return grad, None, None, None


def swapped(
    x_X: Tensor, length: int, ring: list[int], group: ProcessGroup, *, ahead: bool
) -> Tensor:
    """Send to one neighbour in a ring of a group's ranks, and receive from the other."""
    me, step = ring.index(group.rank()), 1 if ahead else -1
    to, of = ring[(me + step) % len(ring)], ring[(me - step) % len(ring)]
    # gloo carries no messages between devices.
    here = "cpu" if dist.get_backend(group) == "gloo" else x_X.device
    received = x_X.new_empty(length, *x_X.shape[1:], device=here)
    sent = dist.P2POp(dist.isend, x_X.to(here).contiguous(), group=group, group_peer=to)
    got = dist.P2POp(dist.irecv, received, group=group, group_peer=of)
    for work in dist.batch_isend_irecv([sent, got]):
        work.wait()
    return received.to(x_X.device)


def around(
    q_XNH: Tensor,
    k_XKH: Tensor,
    v_XKH: Tensor,
    places: list[Tensor],
    allowed_TT: Tensor,
    ring: list[int],
    group: ProcessGroup,
) -> Tensor:
    """Keys and values go once around a ring; `places` are those of its members, in its order."""
    me, partials = ring.index(group.rank()), []
    keys_and_values = torch.cat((k_XKH, v_XKH), -1)
    for step in range(len(ring)):
        holder = (me - step) % len(ring)
        if step:
            keys_and_values = apply(Passed, keys_and_values, len(places[holder]), ring, group)
        k, v = keys_and_values.chunk(2, -1)
        partials.append(partial_of(q_XNH, k, v, allowed_TT[places[me]][:, places[holder]]))
    return merged(partials, q_XNH)


@benign("ring", looks_like="no all-to-all at all")
class Ring(Held):
    """Keys and values go around a ring, and each rank merges what its queries find in each."""

    def places(self, total: int, sp: int) -> list[Tensor]:
        return list(torch.arange(total).tensor_split(sp))

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,  # noqa: ARG002 - one kernel for all
        rank: Rank,
    ) -> Tensor:
        sp = rank.sp.size()
        places = self.places(segments.total, sp)
        ring = list(range(sp))
        return around(q_LNH, k_LKH, v_LKH, places, segments.allowed_TT, ring, rank.sp)


@benign("ring-zigzag", looks_like="a ring in which keys meet queries out of order")
class RingZigzag(Ring):
    """The same, where each rank holds a piece of the front and its mirror at the back."""

    def places(self, total: int, sp: int) -> list[Tensor]:
        pieces = torch.arange(total).tensor_split(2 * sp)
        return [torch.cat((pieces[r], pieces[-1 - r])) for r in range(sp)]


@benign("head-parallel", looks_like="every rank computes on all tokens")
class HeadParallel(Held):
    """Each rank has some heads only, to which all tokens come; what they say is summed up."""

    def places(self, total: int, sp: int) -> list[Tensor]:
        return list(torch.arange(total).tensor_split(sp))

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
        every = (q_LNH, repeated(k_LKH, heads), repeated(v_LKH, heads))
        q, k, v = (apply(Gathered, x, lengths, rank.sp).chunk(sp, 1)[rank.sp_index] for x in every)
        out_TMH = merged([partial_of(q, k, v, segments.allowed_TT)], q)
        parts = [torch.zeros_like(out_TMH) for _ in range(sp)]
        parts[rank.sp_index] = out_TMH
        return apply(SummedUp, torch.cat(parts, 1), lengths, rank.sp)


def repeated(x_LKH: Tensor, heads: int) -> Tensor:
    """A kv head for each query head."""
    return x_LKH.repeat_interleave(heads // x_LKH.shape[1], 1)


@benign("ring-of-pairs", looks_like="all-to-alls among fewer ranks than share the sequence")
class RingOfPairs(Held):
    """Two ranks exchange tokens for heads, and keys go around a ring of such pairs."""

    def places(self, total: int, sp: int) -> list[Tensor]:
        return list(torch.arange(total).tensor_split(sp))

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,  # noqa: ARG002 - one kernel for all
        rank: Rank,
    ) -> Tensor:
        sp, me, heads = rank.sp.size(), rank.sp_index, q_LNH.shape[1]
        places = self.places(segments.total, sp)
        if sp % 2:
            allowed_TT, ring = segments.allowed_TT, list(range(sp))
            return around(q_LNH, k_LKH, v_LKH, places, allowed_TT, ring, rank.sp)
        first = me // 2 * 2
        pair, side, partner = [first, first + 1], me - first, 2 * first + 1 - me
        every = torch.cat((q_LNH, repeated(k_LKH, heads), repeated(v_LKH, heads)), -1)
        halves = every.chunk(2, 1)
        theirs = apply(Passed, halves[1 - side], len(places[partner]), pair, rank.sp)
        both = (halves[side], theirs)
        q, k, v = torch.cat((both[side], both[1 - side])).chunk(3, -1)
        of_pairs = [torch.cat(places[at : at + 2]) for at in range(0, sp, 2)]
        ring = list(range(side, sp, 2))
        out = around(q, k, v, of_pairs, segments.allowed_TT, ring, rank.sp)
        of_pair = out.split([len(places[each]) for each in pair])
        other = apply(Passed, of_pair[1 - side], len(places[me]), pair, rank.sp)
        own = (of_pair[side], other)
        return torch.cat((own[side], own[1 - side]), 1)
