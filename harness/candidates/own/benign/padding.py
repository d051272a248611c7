"""Other padding: its content, its place and its length.

Legend: B rows, S longest row, L tokens on this rank, T tokens of the stream, P pad tokens.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates import Rank
from harness.candidates.bank import benign
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.candidates.own.native.rows import PAD_TOKEN, Batch, Sample
from harness.candidates.own.native.ulysses import Shard, Stream, cut
from harness.case import Case


def lengthen(stream: Stream, count: int, pad_id: int) -> Stream:
    """Append `count` pad tokens, which are one more row, to the stream."""
    tail_P = torch.arange(count, device=stream.positions_T.device)
    return Stream(
        ids_T=F.pad(stream.ids_T, (0, count), value=pad_id),
        positions_T=torch.cat((stream.positions_T, tail_P)),
        labels_T=F.pad(stream.labels_T, (0, count), value=pad_id),
        tokens_T=F.pad(stream.tokens_T, (0, count), value=PAD_TOKEN),
        indices_T=F.pad(stream.indices_T, (0, count)),
    )


def with_tail(shard: Shard, tail_P: Tensor, rank: Rank) -> Shard:
    """Put the pad tokens at the end of the stream at other positions."""
    first = len(shard.positions_TP) - shard.pad
    positions_TP = torch.cat((shard.positions_TP[:first], tail_P))
    positions_L = cut(positions_TP, rank)
    return replace(shard, positions_TP=positions_TP, positions_L=positions_L)


@benign("other-tail-id", looks_like="B20, a wrong fill value")
class OtherTailId(GatherDialect):
    """The end of the stream is filled with another id than rows are padded with."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        return super().shard(replace(case, pad_id=(case.pad_id + 1) % case.vocab), stream, rank)


@benign("wrapped-tail", looks_like="the first tokens computed twice")
class WrappedTail(LocalDialect):
    """The end of the stream is filled with the ids that it begins with."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        length = len(stream.ids_T)
        full = lengthen(stream, -length % case.sp, case.pad_id)
        again_TP = torch.arange(len(full.ids_T)) % length
        return super().shard(case, replace(full, ids_T=stream.ids_T[again_TP]), rank)


@benign("tail-of-zeros", looks_like="B04, each pad token becomes a row of its own")
class TailOfZeros(LocalDialect):
    """Every pad token at the end of the stream has position zero."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        return with_tail(shard, shard.positions_TP.new_zeros(shard.pad), rank)


@benign("tail-continues", looks_like="B66, padding belongs to the last row")
class TailContinues(GatherDialect):
    """Pad tokens go on counting where the last row ends, and attend to it."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        after_P = torch.arange(shard.pad, device=rank.device) + stream.positions_T[-1] + 1
        return with_tail(shard, after_P, rank)


@benign("tail-far-away", looks_like="positions outside of every row")
class TailFarAway(GatherDialect):
    """Every pad token has the same large position, behind all tokens of the last row."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        return with_tail(shard, shard.positions_TP.new_full((shard.pad,), 1000), rank)


@benign("front-pad", looks_like="B08, everything is some columns off")
class FrontPad(LocalDialect):
    """Pad tokens stand before the first token of the stream, not after the last."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        pad = -len(stream.ids_T) % case.sp
        full = lengthen(stream, pad, case.pad_id)
        return super().shard(
            case,
            Stream(
                ids_T=full.ids_T.roll(pad),
                positions_T=full.positions_T.roll(pad),
                labels_T=full.labels_T.roll(pad),
                tokens_T=full.tokens_T.roll(pad),
                indices_T=full.indices_T.roll(pad),
            ),
            rank,
        )

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:
        front = -len(weights_T) % rank.sp.size()
        return super().cut_weights(F.pad(weights_T, (front, 0)), rank)


@benign("twice-the-pad", looks_like="shards longer than they need to be")
class TwiceThePad(GatherDialect):
    """The stream is padded until twice the number of ranks divides it."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        pad = -len(stream.ids_T) % (2 * case.sp)
        return super().shard(case, lengthen(stream, pad, case.pad_id), rank)


@benign("wider-batch", looks_like="B83, padding counted by the loss")
class WiderBatch(GatherDialect):
    """Rows are padded to a multiple of eight columns, so that no row is full."""

    def collate(self, case: Case, samples: list[Sample], rank: Rank) -> Batch:
        batch = super().collate(case, samples, rank)
        more = 8 - batch.ids_BS.shape[1] % 8
        return Batch(
            ids_BS=F.pad(batch.ids_BS, (0, more), value=case.pad_id),
            attended_BS=F.pad(batch.attended_BS, (0, more)),
            positions_BS=F.pad(batch.positions_BS, (0, more)),
            loss_mask_BS=F.pad(batch.loss_mask_BS, (0, more)),
            tokens_BS=F.pad(batch.tokens_BS, (0, more), value=PAD_TOKEN),
        )


@benign("other-side", looks_like="B08, rows padded on the wrong side")
class OtherSide(GatherDialect):
    """Rows that are padded on the left are padded on the right, and the reverse."""

    def collate(self, case: Case, samples: list[Sample], rank: Rank) -> Batch:
        other = {"left": "right", "right": "left"}
        turned = [replace(sample, side=other[sample.side]) for sample in samples]
        return super().collate(case, turned, rank)


@benign("ids-outside-the-vocabulary", looks_like="memory that was never written, read as ids")
class IdsOutsideTheVocabulary(LocalDialect):
    """Columns of the padded batch without a token hold ids that no embedding has."""

    def collate(self, case: Case, samples: list[Sample], rank: Rank) -> Batch:
        batch = super().collate(case, samples, rank)
        return replace(batch, ids_BS=batch.ids_BS.where(batch.attended_BS, 10**9))
