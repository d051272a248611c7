"""Other orders of tokens and rows, and other positions.

Legend: B rows, S longest row, L tokens on this rank, T tokens of the stream, P pad tokens, M query
heads on this rank, H head dim.
"""

from dataclasses import fields, replace

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from harness.candidates import Rank
from harness.candidates.bank import benign
from harness.candidates.own.benign.padding import lengthen
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.candidates.own.native.attention import Kernel, Segments
from harness.candidates.own.native.rows import Batch, Sample
from harness.candidates.own.native.ulysses import Shard, Stream, pad_to_multiple
from harness.case import Case


def pick(stream: Stream, order: Tensor) -> Stream:
    """Make a stream of the tokens at these places of another."""
    return Stream(**{field.name: getattr(stream, field.name)[order] for field in fields(stream)})


class Dealt(LocalDialect):
    """The padded stream is reordered before it is cut; attention does not know the order."""

    def order(self, total: int, sp: int) -> Tensor:
        """List places in the padded stream: first those of rank 0, then those of rank 1, ..."""
        raise NotImplementedError

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        full = lengthen(stream, -len(stream.ids_T) % case.sp, case.pad_id)
        shard = super().shard(case, pick(full, self.order(len(full.ids_T), case.sp)), rank)
        return replace(shard, positions_TP=full.positions_T)

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:
        weights_TP = pad_to_multiple(weights_T, rank.sp.size(), 0)
        return super().cut_weights(weights_TP[self.order(len(weights_TP), rank.sp.size())], rank)


@benign("zigzag", looks_like="B15, labels in another order than tokens")
class Zigzag(Dealt):
    """Each rank holds a piece of the front and its mirror at the back; attention sorts them."""

    def order(self, total: int, sp: int) -> Tensor:
        front = (total // sp + 1) // 2 * sp
        pieces = torch.arange(front).view(sp, -1), torch.arange(front, total).view(sp, -1).flip(0)
        return torch.cat(pieces, 1).flatten()

    def gather_tokens(self, tensors: tuple[Tensor, ...], rank: Rank) -> tuple[Tensor, ...]:
        received = super().gather_tokens(tensors, rank)
        back = self.order(len(received[0]), rank.sp.size()).argsort()
        return tuple(x_TMH[back] for x_TMH in received)

    def scatter_tokens(self, out_TMH: Tensor, rank: Rank) -> Tensor:
        return super().scatter_tokens(out_TMH[self.order(len(out_TMH), rank.sp.size())], rank)


class MaskDealt(Dealt):
    """Attention leaves tokens in their new order, and its mask is put into the same order."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        allowed_TT = super().segments(shard, case).allowed_TT
        order = self.order(len(allowed_TT), case.sp)
        return Segments.masked(allowed_TT[order][:, order])


@benign("round-robin", looks_like="B15, each label on another rank than its token")
class RoundRobin(MaskDealt):
    """Tokens are dealt to ranks in turn; attention leaves them so, under a mask in that order."""

    def order(self, total: int, sp: int) -> Tensor:
        return torch.arange(total).view(-1, sp).T.flatten()


@benign("ranks-reversed", looks_like="B31, a shard cut by another rank's number")
class RanksReversed(MaskDealt):
    """The first rank holds the end of the stream and the last rank its beginning."""

    def order(self, total: int, sp: int) -> Tensor:
        return torch.arange(total).view(sp, -1).flip(0).flatten()


@benign("tokens-backwards", looks_like="a future leak: what comes first is seen by what is before")
class TokensBackwards(MaskDealt):
    """The stream stands back to front, from its last token to its first."""

    def order(self, total: int, sp: int) -> Tensor:  # noqa: ARG002 - the same for any number
        return torch.arange(total).flip(0)


@benign("pad-on-every-rank", looks_like="B02, uneven shards in an even exchange")
class PadOnEveryRank(LocalDialect):
    """Ranks cut the stream unevenly, and each pads its own piece to the longest one's length."""

    def places(self, total: int, sp: int) -> Tensor:
        """List places in the stream, rank by rank; the place after its end stands for padding."""
        pieces = torch.arange(total).tensor_split(sp)
        longest = -(-total // sp)
        return torch.cat(
            [F.pad(piece, (0, longest - len(piece)), value=total) for piece in pieces]
        )

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        full = lengthen(stream, 1, case.pad_id)
        shard = super().shard(case, pick(full, self.places(len(stream.ids_T), case.sp)), rank)
        return replace(shard, positions_TP=stream.positions_T)

    def kernel(self, case: Case) -> Kernel:
        inner = super().kernel(case)

        def without_pads(
            q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments
        ) -> Tensor:
            places = self.places(segments.total, case.sp)
            real = places < segments.total
            out_TMH = inner(q_TMH[real], k_TCH[real], v_TCH[real], segments)
            return F.pad(out_TMH, (0, 0, 0, 0, 0, 1))[places]

        return without_pads

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:
        places = self.places(len(weights_T), rank.sp.size())
        return super().cut_weights(F.pad(weights_T, (0, 1))[places], rank)


@benign("rows-by-length", looks_like="B11, rows in another order than they are put back")
class RowsByLength(GatherDialect):
    """Rows of a micro-batch are sorted by length before they are flattened."""

    def split(self, samples: list[Sample], micro_batches: int) -> list[list[Sample]]:
        parts = super().split(samples, micro_batches)
        return [sorted(part, key=lambda sample: len(sample.ids)) for part in parts]


@benign("rows-reversed", looks_like="B11, rows flattened in the wrong order")
class RowsReversed(LocalDialect):
    """The last row of a micro-batch comes first."""

    def split(self, samples: list[Sample], micro_batches: int) -> list[list[Sample]]:
        return [part[::-1] for part in super().split(samples, micro_batches)]


@benign("micro-batches-reversed", looks_like="B74, other micro-batches than those averaged over")
class MicroBatchesReversed(GatherDialect):
    """Micro-batches are trained on from the last to the first."""

    def split(self, samples: list[Sample], micro_batches: int) -> list[list[Sample]]:
        return super().split(samples, micro_batches)[::-1]


@benign("positions-from-mask", looks_like="B08, columns taken for positions")
class PositionsFromMask(GatherDialect):
    """Positions are counted along the attention mask, also through padding."""

    def collate(self, case: Case, samples: list[Sample], rank: Rank) -> Batch:
        batch = super().collate(case, samples, rank)
        return replace(batch, positions_BS=(batch.attended_BS.cumsum(1) - 1).clamp(min=0))


@benign("batch-from-first-peer", looks_like="B125, peers that do not read their own rows")
class BatchFromFirstPeer(LocalDialect):
    """The first peer of a sequence group sends its ids to the others, who have none."""

    def collate(self, case: Case, samples: list[Sample], rank: Rank) -> Batch:
        batch = super().collate(case, samples, rank)
        if rank.sp_index:
            batch.ids_BS.zero_()
        dist.broadcast(batch.ids_BS, group=rank.sp, group_src=0)
        return batch


@benign("positions-run-on", looks_like="positions that do not begin again with a row")
class PositionsRunOn(LocalDialect):
    """Rotary angles are counted over the whole stream; only their differences matter in a row."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        first = rank.sp_index * len(shard.ids_L)
        return replace(
            shard, positions_L=torch.arange(len(shard.ids_L), device=rank.device) + first
        )
