"""Bugs in batching, padding and unpadding.

Legend: B rows, S longest row, t tokens of one row, T tokens of the stream, P pad tokens, L tokens
on this rank.
"""

from dataclasses import fields, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates import Rank
from harness.candidates.bank import mutant
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.rows import Batch, Sample
from harness.candidates.own.native.training import sum_over
from harness.candidates.own.native.ulysses import Shard, Stream, cut, pad_to_multiple
from harness.case import Case


@mutant(
    "B01",
    "ByteDance-Seed/VeOmni#1139",
    "ByteDance-Seed/VeOmni#61",
    needs=("sp>1",),
    named="token-lost",
)
class FloorDivision(LocalDialect):
    """Every rank takes T // sp tokens of the stream, and no rank takes the remainder."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        return super().shard(case, pick(stream, divisible_part(stream.ids_T, rank)), rank)

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:
        return super().cut_weights(weights_T[divisible_part(weights_T, rank)], rank)


@mutant(
    "B02",
    "deepspeedai/DeepSpeed#7384",
    "deepspeedai/DeepSpeed#7842",
    "deepspeedai/DeepSpeed#7868",
    needs=("sp>1",),
    named="pad-leak",
)
class UnevenShards(LocalDialect):
    """Some ranks hold a token less, and an exchange for equal shards takes a filler for it."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        own = pick(stream, uneven_part(stream.ids_T, rank))
        return replace(
            super().shard(case, stream, rank),
            ids_L=own.ids_T,
            positions_L=own.positions_T,
            labels_L=own.labels_T,
            tokens_L=own.tokens_T,
        )

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, segments: Segments, case: Case, rank: Rank
    ) -> Tensor:
        length, longest = len(q), segments.total // case.sp
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, longest - length)) for x in (q, k, v))
        return super().attend(q, k, v, segments, case, rank)[:length]

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:
        return weights_T[uneven_part(weights_T, rank)]


@mutant("B03", "daydreamlive/scope#117", needs=("T divisible by sp",), named="crashed")
class NothingIsAllButNone(GatherDialect):
    """Padding is taken off as `x[:-pad]`, which leaves nothing where there is no padding."""

    pad: int

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        self.pad = shard.pad
        return shard

    def gather_losses(self, nll_L: Tensor, rank: Rank) -> Tensor:
        nll_TP = super().gather_losses(nll_L, rank)
        return nll_TP[: -self.pad] if rank.sp.size() > 1 else nll_TP


@mutant("B03b", "daydreamlive/scope#117", needs=("T divisible by sp",), named="mask-replaced")
class EverythingIsTheLastNone(LocalDialect):
    """Padding is taken out of the loss as `x[-pad:] = 0`, which is all where there is none."""

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:
        weights_TP = pad_to_multiple(weights_T, rank.sp.size(), 1)
        if rank.sp.size() > 1:
            weights_TP[-(len(weights_TP) - len(weights_T)) :] = 0
        return cut(weights_TP, rank)


@mutant(
    "B04",
    "ByteDance-Seed/VeOmni#136",
    "ByteDance-Seed/VeOmni#746",
    "PrimeIntellect-ai/prime-rl#2485",
    needs=("pad of two or more",),
    named="denominator-wrong-count",
)
class PadTokensAreRows(LocalDialect):
    """Every pad token has position zero and so is a row, where the mean over rows expects one."""

    rows: Tensor

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        streams = [self.unpad(batch).positions_T for batch in micro_batches]
        padded = [pad_to_multiple(positions_T, rank.sp.size(), 0) for positions_T in streams]
        starts = torch.stack([(positions_TP == 0).sum() for positions_TP in padded]).sum()
        tails = sum(len(p_TP) > len(p_T) for p_TP, p_T in zip(padded, streams, strict=True))
        self.rows = sum_over(starts - tails, rank.dp)
        return super().targets(micro_batches, rank)

    def weights(self, case: Case, batch: Batch, stream: Stream, targets: Tensor) -> Tensor:
        weights_T = super().weights(case, batch, stream, targets)
        return weights_T * len(case.rows) / self.rows if case.loss == "row-mean" else weights_T


@mutant("B05", "modelscope/ms-swift#10180", needs=("sp>1",), named="mask-shifted")
class MaskOfThePaddedLayout(LocalDialect):
    """A row's mask is looked up where the row begins once each row before it is padded."""

    def weights(self, case: Case, batch: Batch, stream: Stream, targets: Tensor) -> Tensor:
        weights_T = super().weights(case, batch, stream, targets)
        lengths_B = batch.attended_BS.sum(1)
        pads_B = -lengths_B % case.sp
        moved_B = pads_B.cumsum(0) - pads_B
        at_T = torch.arange(len(weights_T), device=weights_T.device)
        return F.pad(weights_T, (0, int(moved_B[-1])))[at_T + moved_B.repeat_interleave(lengths_B)]


@mutant("B06", "modelscope/ms-swift#10035", needs=(), named="mask-shifted")
class WeightsAreNotShifted(LocalDialect):
    """A token's weight is applied to its own row of logits, not to the one that predicts it."""

    def weights(self, case: Case, batch: Batch, stream: Stream, targets: Tensor) -> Tensor:
        return super().weights(case, batch, stream, targets).roll(1)


@mutant("B06b", "modelscope/ms-swift#10035", needs=(), named="mask-replaced")
class WeightsAreNotUnpadded(LocalDialect):
    """The losses are those of the stream, the weights still those of the padded batch."""

    def weights(self, case: Case, batch: Batch, stream: Stream, targets: Tensor) -> Tensor:
        columns_T = torch.arange(len(stream.indices_T), device=stream.indices_T.device)
        return super().weights(case, batch, replace(stream, indices_T=columns_T), targets)


@mutant("B07", "OpenRLHF/OpenRLHF#781", needs=(), named="mask-replaced")
class OffsetByAnswers(LocalDialect):
    """A row's mask is moved by the answers of the rows before it instead of by their lengths."""

    def weights(self, case: Case, batch: Batch, stream: Stream, targets: Tensor) -> Tensor:
        weights_T = super().weights(case, batch, stream, targets)
        moved_T, at = torch.zeros_like(weights_T), 0
        rows = weights_T.split(batch.attended_BS.sum(1).tolist())
        for row_t, answer in zip(rows, batch.loss_mask_BS.sum(1).tolist(), strict=True):
            moved_T[at : at + len(row_t)] += row_t
            at += answer
        return moved_T


@mutant("B08", "QwenLM/Qwen3-ASR#212", needs=("left-padded row",), named="mask-replaced")
class PromptInColumns(GatherDialect):
    """As many columns as the prompt is long are masked, and left padding is among them."""

    def collate(self, case: Case, samples: list[Sample], rank: Rank) -> Batch:
        batch = super().collate(case, samples, rank)
        left = super().collate(case, [replace(s, side="right") for s in samples], rank)
        answers_BS = left.loss_mask_BS | ~left.attended_BS
        return replace(batch, loss_mask_BS=answers_BS & batch.attended_BS)


@mutant("B09", "unslothai/unsloth#6738", needs=("left-padded row",), named="pad-leak")
class LeftPaddingIsSeen(LocalDialect):
    """The padding mask is ignored on the left of a row, and its tokens attend to padding."""

    columns_T: Tensor

    def unpad(self, batch: Batch) -> Stream:
        up_to_last_BS = batch.attended_BS.flip(1).cumsum(1).flip(1) > 0
        stream = super().unpad(replace(batch, attended_BS=up_to_last_BS))
        self.columns_T = stream.indices_T % batch.ids_BS.shape[1]
        return stream

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        tail = shard.positions_TP[len(self.columns_T) :]
        return replace(shard, positions_TP=torch.cat((self.columns_T, tail)))


@mutant("B10", "verl-project/verl#1270", needs=("rank that holds only padding",), named="crashed")
class LongestOfNoRows(GatherDialect):
    """A rank is left with no row after padding is removed, and asks for the longest of them."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        shard.positions_L[shard.tokens_L >= 0].max()
        return super().segments(shard, case)


@mutant(
    "B11",
    "deepspeedai/DeepSpeed#5808",
    "deepspeedai/DeepSpeed#5823",
    "NVIDIA-NeMo/RL#1835",
    needs=(),
    named="input-replaced",
)
class IdsByColumn(GatherDialect):
    """Ids are unpadded column by column, everything else row by row."""

    def unpad(self, batch: Batch) -> Stream:
        return replace(super().unpad(batch), ids_T=batch.ids_BS.T[batch.attended_BS.T])


@mutant(
    "B11b",
    "deepspeedai/DeepSpeed#5808",
    "deepspeedai/DeepSpeed#5823",
    "NVIDIA-NeMo/RL#1835",
    needs=(),
    named="label-replaced",
)
class RowsInterleaved(LocalDialect):
    """The padded batch is flattened as if it were one row, and the tokens of rows interleave."""

    def unpad(self, batch: Batch) -> Stream:
        stream = super().unpad(batch)
        by_column_T = (stream.indices_T % batch.ids_BS.shape[1]).argsort(stable=True)
        return Stream(*(getattr(stream, field.name)[by_column_T] for field in fields(stream)))


@mutant("B12", "unslothai/unsloth-zoo#672", needs=("sp>1",), named="token-lost")
class RowsTruncated(GatherDialect):
    """Rows are truncated to a multiple of sp before labels are shifted, and lose targets."""

    def samples(self, case: Case, rank: Rank) -> list[Sample]:
        return [
            truncate(sample, max(len(sample.ids) // case.sp, 1) * case.sp)
            for sample in super().samples(case, rank)
        ]


LEFT_OUT: dict[str, str] = {}


def pick(stream: Stream, piece: slice) -> Stream:
    """Take the same piece of each tensor of a stream."""
    return Stream(*(getattr(stream, field.name)[piece] for field in fields(stream)))


def divisible_part(values_T: Tensor, rank: Rank) -> slice:
    """Return the longest first part whose length sp divides."""
    return slice(len(values_T) // rank.sp.size() * rank.sp.size())


def uneven_part(values_T: Tensor, rank: Rank) -> slice:
    """Return this rank's part, where the lengths of parts may differ by one."""
    sp, i = rank.sp.size(), rank.sp_index
    return slice(len(values_T) * i // sp, len(values_T) * (i + 1) // sp)


def truncate(sample: Sample, length: int) -> Sample:
    """Keep the first tokens of a row."""
    return replace(
        sample,
        ids=sample.ids[:length],
        loss_mask=sample.loss_mask[:length],
        tokens=sample.tokens[:length],
    )
