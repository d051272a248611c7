"""Attention that passes keys and values around a ring of ranks.

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
from harness.candidates.own.benign.held import FreeLayout, apply, repeat_heads, zigzag
from harness.candidates.own.benign.partials import attend_partially, join_partials
from harness.candidates.own.native.attention import Segments
from harness.case import Case


class PassOn(torch.autograd.Function):
    """Pass a tensor to the next rank of a ring; backward passes its gradient to the previous."""

    @staticmethod
    def forward(
        ctx: Any, x_X: Tensor, length: int, ring: list[int], group: ProcessGroup
    ) -> Tensor:
        ctx.length, ctx.ring, ctx.group = len(x_X), ring, group
        return pass_on(x_X, length, ring, group, ahead=True)

    @staticmethod
    def backward(ctx: Any, grad_X: Tensor) -> tuple[Tensor, None, None, None]:
        grad = pass_on(grad_X, ctx.length, ctx.ring, ctx.group, ahead=False)
        return grad, None, None, None


def pass_on(
    x_X: Tensor, length: int, ring: list[int], group: ProcessGroup, *, ahead: bool
) -> Tensor:
    """Send to one neighbour in a ring of a group's ranks, and receive from the other."""
    own, step = ring.index(group.rank()), 1 if ahead else -1
    target, source = ring[(own + step) % len(ring)], ring[(own - step) % len(ring)]
    # gloo sends messages between CPUs only.
    device = "cpu" if dist.get_backend(group) == "gloo" else x_X.device
    received = x_X.new_empty(length, *x_X.shape[1:], device=device)
    send = dist.P2POp(dist.isend, x_X.to(device).contiguous(), group=group, group_peer=target)
    receive = dist.P2POp(dist.irecv, received, group=group, group_peer=source)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()
    return received.to(x_X.device)


def attend_around_ring(
    q_XNH: Tensor,
    k_XKH: Tensor,
    v_XKH: Tensor,
    places: list[Tensor],
    allowed_TT: Tensor,
    ring: list[int],
    group: ProcessGroup,
) -> Tensor:
    """Attend while keys and values go once around the ring; `places` are those of its members."""
    own, partials = ring.index(group.rank()), []
    keys_and_values = torch.cat((k_XKH, v_XKH), -1)
    for step in range(len(ring)):
        holder = (own - step) % len(ring)
        if step:
            keys_and_values = apply(PassOn, keys_and_values, len(places[holder]), ring, group)
        k, v = keys_and_values.chunk(2, -1)
        allowed = allowed_TT[places[own]][:, places[holder]]
        partials.append(attend_partially(q_XNH, k, v, allowed))
    return join_partials(partials, q_XNH)


@benign("ring", looks_like="no all-to-all at all")
class Ring(FreeLayout):
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
        return attend_around_ring(q_LNH, k_LKH, v_LKH, places, segments.allowed_TT, ring, rank.sp)


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
        sp, index, heads = rank.sp.size(), rank.sp_index, q_LNH.shape[1]
        if sp % 2:
            return super().attend(q_LNH, k_LKH, v_LKH, segments, case, rank)
        places = self.places(segments.total, sp)
        first = index // 2 * 2
        pair, side, partner = [first, first + 1], index - first, 2 * first + 1 - index
        every = torch.cat((q_LNH, repeat_heads(k_LKH, heads), repeat_heads(v_LKH, heads)), -1)
        halves = every.chunk(2, 1)
        received = apply(PassOn, halves[1 - side], len(places[partner]), pair, rank.sp)
        both = (halves[side], received)
        q, k, v = torch.cat((both[side], both[1 - side])).chunk(3, -1)
        pair_places = [torch.cat(places[at : at + 2]) for at in range(0, sp, 2)]
        ring = list(range(side, sp, 2))
        out = attend_around_ring(q, k, v, pair_places, segments.allowed_TT, ring, rank.sp)
        outs = out.split([len(places[member]) for member in pair])
        other = apply(PassOn, outs[1 - side], len(places[index]), pair, rank.sp)
        own = (outs[side], other)
        return torch.cat((own[side], own[1 - side]), 1)
