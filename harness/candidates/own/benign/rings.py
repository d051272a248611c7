"""Sequences shared by handing keys and values around a ring of ranks.

Legend: T tokens of the stream, L tokens on this rank, X tokens of one block, N heads, K kv heads,
H head dim.
"""

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import ProcessGroup

from harness.candidates import Rank
from harness.candidates.bank import benign
from harness.candidates.own.benign.held import Held, apply, repeated, zigzag
from harness.candidates.own.benign.partials import joined, partial_of
from harness.candidates.own.native.attention import Segments
from harness.case import Case


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
    return joined(partials, q_XNH)


@benign("ring", looks_like="no all-to-all at all")
class Ring(Held):
    """Keys and values go around a ring, and each rank merges what its queries find in each."""

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
    """Each rank holds a piece of the front and its mirror at the back."""

    def places(self, total: int, sp: int) -> list[Tensor]:
        return zigzag(total, sp)


@benign("ring-of-pairs", looks_like="all-to-alls among fewer ranks than share the sequence")
class RingOfPairs(Ring):
    """Two ranks exchange tokens for heads, and keys go around a ring of such pairs."""

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,
        rank: Rank,
    ) -> Tensor:
        sp, me, heads = rank.sp.size(), rank.sp_index, q_LNH.shape[1]
        if sp % 2:
            return super().attend(q_LNH, k_LKH, v_LKH, segments, case, rank)
        places = self.places(segments.total, sp)
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
