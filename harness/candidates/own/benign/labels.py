"""Labels shifted in other places, and other labels where none counts.

Legend: B rows, S longest row, L tokens on this rank, T tokens of the stream, s peers.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from harness.candidates import Rank
from harness.candidates.bank import benign
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.candidates.own.native.rows import Batch, Sample
from harness.candidates.own.native.ulysses import Shard, Stream, supervised_columns
from harness.case import Case

IGNORED = -100


def is_counted(batch: Batch, stream: Stream) -> Tensor:
    """Return which tokens of the stream carry a loss term."""
    counts_T: Tensor = F.pad(supervised_columns(batch), (0, 1)).flatten()[stream.indices_T]
    return counts_T


@benign("shifted-per-row", looks_like="B12, one target fewer in each row")
class ShiftedPerRow(GatherDialect):
    """Labels are shifted in the padded batch, row by row, and flattened with the ids."""

    def unpad(self, batch: Batch) -> Stream:
        stream = super().unpad(batch)
        labels_BS = F.pad(batch.ids_BS[:, 1:], (0, 1))
        return replace(stream, labels_T=labels_BS.flatten()[stream.indices_T])

    def shift_labels(self, stream: Stream) -> Stream:
        return stream


@benign("label-from-next-rank", looks_like="B14, labels shifted after the cut")
class LabelFromNextRank(LocalDialect):
    """Each rank shifts its own labels and asks the next one for the last of them."""

    def shift_labels(self, stream: Stream) -> Stream:
        return stream

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        firsts_s = list(shard.labels_L.new_empty(case.sp, 1).unbind())
        dist.all_gather(firsts_s, shard.labels_L[:1].contiguous(), group=rank.sp)
        following = firsts_s[(rank.sp_index + 1) % case.sp]
        return replace(shard, labels_L=torch.cat((shard.labels_L[1:], following)))


@benign("tail-labels-ignored", looks_like="B05, labels padded in another way than ids")
class TailLabelsIgnored(GatherDialect):
    """Pad tokens at the end of the stream have the label that cross entropy ignores."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        return replace(shard, labels_L=shard.labels_L.where(shard.tokens_L >= 0, IGNORED))


@benign("row-ends-ignored", looks_like="B21, one label given up")
class RowEndsIgnored(LocalDialect):
    """The last token of a row has no label, where the mask would hide the next row's first."""

    def shift_labels(self, stream: Stream) -> Stream:
        ends_T = stream.positions_T.roll(-1) == 0
        return replace(stream, labels_T=stream.labels_T.roll(-1).masked_fill(ends_T, IGNORED))


@benign("unsupervised-ignored", looks_like="a mask applied twice")
class UnsupervisedIgnored(GatherDialect):
    """Labels that the mask hides are ignored by cross entropy as well."""

    def unpad(self, batch: Batch) -> Stream:
        stream = super().unpad(batch)
        return replace(
            stream, labels_T=stream.labels_T.roll(-1).where(is_counted(batch, stream), IGNORED)
        )

    def shift_labels(self, stream: Stream) -> Stream:
        return stream


@benign("unsupervised-replaced", looks_like="B20, labels overwritten with ids")
class UnsupervisedReplaced(LocalDialect):
    """Labels that the mask hides are any ids of the vocabulary."""

    def unpad(self, batch: Batch) -> Stream:
        stream = super().unpad(batch)
        others_T = torch.arange(len(stream.ids_T), device=stream.ids_T.device) % 2
        return replace(
            stream, labels_T=stream.labels_T.roll(-1).where(is_counted(batch, stream), others_T)
        )

    def shift_labels(self, stream: Stream) -> Stream:
        return stream


@benign("first-tokens-masked-in", looks_like="B84, first tokens counted as targets")
class FirstTokensMaskedIn(GatherDialect):
    """The loss mask is set at the first token of every row, which nothing predicts."""

    def collate(self, case: Case, samples: list[Sample], rank: Rank) -> Batch:
        masked_in = [replace(s, loss_mask=(True, *s.loss_mask[1:])) for s in samples]
        return super().collate(case, masked_in, rank)


@benign("padding-masked-in", looks_like="B83, padding counted as targets")
class PaddingMaskedIn(LocalDialect):
    """The loss mask is set in padding, except just behind a row, whose last token would count."""

    def collate(self, case: Case, samples: list[Sample], rank: Rank) -> Batch:
        batch = super().collate(case, samples, rank)
        before_BS = F.pad(batch.attended_BS[:, :-1], (1, 0))
        return replace(batch, loss_mask_BS=batch.loss_mask_BS | ~(batch.attended_BS | before_BS))
