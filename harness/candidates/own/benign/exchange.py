"""The all-to-alls of Ulysses in other forms.

Legend: L tokens on this rank, T tokens of the stream, N query heads, K kv heads, M query heads on
this rank, C kv heads on this rank, H head dim, s peers.
"""

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.nn import functional as differentiable

from harness.candidates import Rank
from harness.candidates.bank import benign
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.exchange import gather_tokens
from harness.case import Case


class OverlappedExchange(torch.autograd.Function):
    """Run several exchanges at once, in forward and in backward, and wait for all of them."""

    @staticmethod
    def forward(ctx: Any, group: ProcessGroup, *pieces: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        return exchange_all(pieces, group)

    @staticmethod
    def backward(ctx: Any, *grad_pieces: Tensor) -> tuple[Tensor | None, ...]:
        return None, *exchange_all(grad_pieces, ctx.group)


def exchange_all(pieces: tuple[Tensor, ...], group: ProcessGroup) -> tuple[Tensor, ...]:
    """Send piece j of the first dim of each tensor to peer j."""
    sent = [x.contiguous() for x in pieces]
    received = tuple(torch.empty_like(x) for x in sent)
    works = [
        dist.all_to_all_single(to, x, group=group, async_op=True)
        for to, x in zip(received, sent, strict=True)
    ]
    for work in works:
        work.wait()
    return received


@benign("exchanges-overlap", looks_like="B144, an exchange read before it has landed")
class ExchangesOverlap(GatherDialect):
    """Queries, keys and values are under way at once, and awaited before they are used."""

    def gather_tokens(self, tensors: tuple[Tensor, ...], rank: Rank) -> tuple[Tensor, ...]:
        pieces = [x_LNH.unflatten(1, (rank.sp.size(), -1)).movedim(1, 0) for x_LNH in tensors]
        received: tuple[Tensor, ...] = OverlappedExchange.apply(rank.sp, *pieces)  # type: ignore[no-untyped-call]
        return tuple(x_sLMH.flatten(0, 1) for x_sLMH in received)


@benign("exchanges-apart", looks_like="B49, keys and values sent another way than queries")
class ExchangesApart(LocalDialect):
    """Queries, keys and values each have an exchange of their own."""

    def gather_tokens(self, tensors: tuple[Tensor, ...], rank: Rank) -> tuple[Tensor, ...]:
        return tuple(gather_tokens(x_LNH, rank.sp) for x_LNH in tensors)


@benign("keys-beside-values", looks_like="B42, a shape that fits by luck")
class KeysBesideValues(GatherDialect):
    """Keys and values are exchanged as one tensor with heads twice as wide."""

    def gather_tokens(self, tensors: tuple[Tensor, ...], rank: Rank) -> tuple[Tensor, ...]:
        q_LNH, k_LKH, v_LKH = tensors
        both_TCH = gather_tokens(torch.cat((k_LKH, v_LKH), -1), rank.sp)
        return gather_tokens(q_LNH, rank.sp), *both_TCH.chunk(2, -1)


@benign("heads-first", looks_like="B40, a reshape whose permute is missing")
class HeadsFirst(LocalDialect):
    """Heads come before tokens in what is sent, so that pieces are contiguous as they are."""

    def gather_tokens(self, tensors: tuple[Tensor, ...], rank: Rank) -> tuple[Tensor, ...]:
        return tuple(self.exchange(x_LNH, rank) for x_LNH in tensors)

    def exchange(self, x_LNH: Tensor, rank: Rank) -> Tensor:
        pieces_sMLH = x_LNH.transpose(0, 1).unflatten(0, (rank.sp.size(), -1))
        (received_sMLH,) = OverlappedExchange.apply(rank.sp, pieces_sMLH)  # type: ignore[no-untyped-call]
        x_TMH: Tensor = received_sMLH.transpose(1, 2).flatten(0, 1)
        return x_TMH


@benign("torchs-own-exchange", looks_like="B105, an exchange without a backward of its own")
class TorchsOwnExchange(LocalDialect):
    """Both directions go through the differentiable all-to-all that comes with torch."""

    def gather_tokens(self, tensors: tuple[Tensor, ...], rank: Rank) -> tuple[Tensor, ...]:
        pieces = [x_LNH.unflatten(1, (rank.sp.size(), -1)).movedim(1, 0) for x_LNH in tensors]
        return tuple(self.exchange(pieces_sLMH, rank).flatten(0, 1) for pieces_sLMH in pieces)

    def scatter_tokens(self, out_TMH: Tensor, rank: Rank) -> Tensor:
        pieces_sLMH = out_TMH.unflatten(0, (rank.sp.size(), -1))
        return self.exchange(pieces_sLMH, rank).movedim(0, 1).flatten(1, 2)

    def exchange(self, pieces: Tensor, rank: Rank) -> Tensor:
        sent = pieces.contiguous()
        received: Tensor = differentiable.all_to_all_single(
            torch.empty_like(sent), sent, group=rank.sp
        )
        return received


@benign("head-by-head", looks_like="B41, pieces interleaved in the wrong order")
class HeadByHead(GatherDialect):
    """Each rank's heads are exchanged one at a time, and back as well."""

    def gather_tokens(self, tensors: tuple[Tensor, ...], rank: Rank) -> tuple[Tensor, ...]:
        return tuple(
            torch.cat(
                [
                    gather_tokens(head_LsH, rank.sp)
                    for head_LsH in x_LNH.unflatten(1, (rank.sp.size(), -1)).unbind(2)
                ],
                1,
            )
            for x_LNH in tensors
        )

    def scatter_tokens(self, out_TMH: Tensor, rank: Rank) -> Tensor:
        heads = [super(HeadByHead, self).scatter_tokens(x, rank) for x in out_TMH.split(1, 1)]
        return torch.stack(heads, 2).flatten(1, 2)


@benign("kv-repeated-early", looks_like="B49, more kv heads sent than there are")
class KvRepeatedEarly(LocalDialect):
    """Each kv head is repeated for all of its queries before the exchange, not after."""

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,
        rank: Rank,
    ) -> Tensor:
        times = case.heads // case.kv_heads
        k_LNH, v_LNH = (x.repeat_interleave(times, 1) for x in (k_LKH, v_LKH))
        return super().attend(q_LNH, k_LNH, v_LNH, segments, case, rank)


@benign("heads-dealt", looks_like="B43, heads in another order on the way out than back")
class HeadsDealt(GatherDialect):
    """Groups of heads are dealt to ranks in turn, and put in order again on their return."""

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,
        rank: Rank,
    ) -> Tensor:
        k_LKH, v_LKH = self.repeat_kv_heads(k_LKH, rank), self.repeat_kv_heads(v_LKH, rank)
        groups = k_LKH.shape[1]
        dealt = torch.arange(groups).view(-1, case.sp).T.flatten()
        q_LNH = q_LNH.unflatten(1, (groups, -1))[:, dealt].flatten(1, 2)
        out_LNH = super().attend(q_LNH, k_LKH[:, dealt], v_LKH[:, dealt], segments, case, rank)
        sorted_LNH: Tensor = out_LNH.unflatten(1, (groups, -1))[:, dealt.argsort()].flatten(1, 2)
        return sorted_LNH
