"""The native step with one step replaced. All of them run, finish and report a plausible loss."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates import Rank
from harness.candidates.native import GatherDialect, LocalDialect
from harness.candidates.native.packing import Batch, Shard, Stream, cut, pad_to
from harness.candidates.native.reduction import sum_gradients
from harness.case import Case
from harness.reference.decoder import Decoder
from properties import planted


class TrainsRowEnds(LocalDialect):
    """B18: the last token of a row is trained to predict the first of the next row."""

    name = "trains-row-ends"

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        mask_T = F.pad(batch.loss_mask_BS.flatten()[stream.indices_T][1:], (0, 1))
        weights_T = mask_T / targets.clamp(min=1).double()
        return (nll_L * cut(pad_to(weights_T, case.sp, 0), case.sp, rank.sp_index)).sum()


class MaskStaysLeft(GatherDialect):
    """B08: the loss mask is counted in columns from the left, also where padding is there."""

    name = "mask-stays-left"

    def loss(self, case: Case, batch: Batch, *rest: Any) -> Tensor:
        real_first_BS = batch.attended_BS.int().argsort(stable=True, dim=1, descending=True)
        mask_BS = batch.loss_mask_BS.gather(1, real_first_BS)
        return super().loss(case, replace(batch, loss_mask_BS=mask_BS), *rest)


class CountsPadding(LocalDialect):
    """B83: the sum over targets is divided by the size of the padded batch."""

    name = "counts-padding"

    def loss(self, case: Case, batch: Batch, *rest: Any) -> Tensor:
        stream, nll_L, _targets, rank = rest
        count = torch.tensor(batch.ids_BS.numel() * case.dp * case.micro_batches)
        return super().loss(case, batch, stream, nll_L, count, rank)


class IgnoresPadId(GatherDialect):
    """B23: a real token that happens to have the id of padding is taken out of the loss."""

    name = "ignores-pad-id"

    def loss(self, case: Case, batch: Batch, *rest: Any) -> Tensor:
        mask_BS = batch.loss_mask_BS & (batch.ids_BS != case.pad_id)
        return super().loss(case, replace(batch, loss_mask_BS=mask_BS), *rest)


class AveragesMeans(LocalDialect):
    """B74: micro-batches are averaged although their numbers of targets differ."""

    name = "averages-means"

    def loss(self, case: Case, *rest: Any) -> Tensor:
        return super().loss(replace(case, loss="micro-mean"), *rest)


class Sums(GatherDialect):
    """B89: the sum over targets is trained on, and the count thrown away."""

    name = "sums"

    def loss(self, case: Case, batch: Batch, *rest: Any) -> Tensor:
        stream, nll_L, _targets, rank = rest
        return super().loss(case, batch, stream, nll_L, torch.ones(()), rank)


class AveragesReplicas(LocalDialect):
    """B118: a loss over the global count is summed over peers, but averaged over replicas."""

    name = "averages-replicas"

    def reduce(self, model: Decoder, rank: Rank) -> None:
        sum_gradients(model, rank.world, divide_by=rank.dp.size())


class OneDocument(LocalDialect):
    """B56: attention is told that the whole stream is one row."""

    name = "one-document"

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        mine = super().shard(case, stream, rank)
        return replace(mine, positions_TP=torch.arange(len(mine.positions_TP)))


class FeedsLabels(LocalDialect):
    """B71: one mask is taken for the other, and the model reads padding where nothing counts."""

    name = "feeds-labels"

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        counts = torch.tensor([bit == "1" for row in case.rows for bit in row.mask])
        ids_T = stream.ids_T.where(counts[stream.tokens_T], case.pad_id)
        return super().shard(case, replace(stream, ids_T=ids_T), rank)


class ShiftsTwice(GatherDialect):
    """B16: labels that the collator has shifted are shifted again."""

    name = "shifts-twice"

    def shifted(self, stream: Stream) -> Stream:
        return super().shifted(super().shifted(stream))


class CountsBeforeTheShift(LocalDialect):
    """B84: the first token of a row is counted as a target, which nothing predicts."""

    name = "counts-before-the-shift"

    def loss(self, case: Case, batch: Batch, *rest: Any) -> Tensor:
        stream, nll_L, _targets, rank = rest
        count = torch.tensor(sum(row.mask.count("1") for row in case.rows))
        return super().loss(case, batch, stream, nll_L, count, rank)


class TrainsEverything(GatherDialect):
    """B88: the loss mask is dropped, and every real token is a target."""

    name = "trains-everything"

    def loss(self, case: Case, batch: Batch, *rest: Any) -> Tensor:
        return super().loss(case, replace(batch, loss_mask_BS=batch.attended_BS), *rest)


class MaskIsNotShifted(GatherDialect):
    """B22: the loss of predicting token t + 1 counts where token t is supervised."""

    name = "mask-is-not-shifted"

    def loss(self, case: Case, batch: Batch, *rest: Any) -> Tensor:
        mask_BS = batch.loss_mask_BS.roll(1, 1)
        return super().loss(case, replace(batch, loss_mask_BS=mask_BS), *rest)


LOCAL_ROLL = planted.LOCAL_ROLL
TRAINS_ROW_ENDS = TrainsRowEnds()
MASK_STAYS_LEFT = MaskStaysLeft()
COUNTS_PADDING = CountsPadding()
IGNORES_PAD_ID = IgnoresPadId()
AVERAGES_MEANS = AveragesMeans()
SUMS = Sums()
AVERAGES_REPLICAS = AveragesReplicas()
ONE_DOCUMENT = OneDocument()
FEEDS_LABELS = FeedsLabels()
SHIFTS_TWICE = ShiftsTwice()
COUNTS_BEFORE_THE_SHIFT = CountsBeforeTheShift()
TRAINS_EVERYTHING = TrainsEverything()
MASK_IS_NOT_SHIFTED = MaskIsNotShifted()
