"""Bugs in the shift of labels and in the alignment of loss masks.

Legend: B rows, S longest row, t tokens of one row, T tokens of the stream, P pad tokens, L tokens
on this rank, s peers.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates import Rank
from harness.candidates.bank import mutant
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.rows import PAD_TOKEN, Batch
from harness.candidates.own.native.ulysses import Shard, Stream, cut, pad_to_multiple
from harness.case import Case

IGNORED = -100


@mutant(
    "B13",
    "huggingface/transformers#36607",
    "huggingface/transformers#48563",
    "huggingface/transformers#48570",
    "NVIDIA-BioNeMo/bionemo-recipes#1449",
    needs=("supervised label on the next rank",),
    named="label-lost-at-edge",
)
class ShiftedInsideTheShard(LocalDialect):
    """The model shifts the labels of its own shard, and the last of them is ignored."""

    def shift_labels(self, stream: Stream) -> Stream:
        return stream

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        return replace(shard, labels_L=F.pad(shard.labels_L[1:], (0, 1), value=IGNORED))


@mutant(
    "B14",
    "verl-project/verl#6268",
    "verl-project/verl#6068",
    "verl-project/verl#5227",
    needs=("supervised label on the next rank",),
    named="label-rolled-locally",
)
class RolledAfterTheCut(LocalDialect):
    """Labels are shifted after the cut: each rank's last one wraps to its own first token."""

    def shift_labels(self, stream: Stream) -> Stream:
        return stream

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        return replace(shard, labels_L=shard.labels_L.roll(-1))


class Dealt(LocalDialect):
    """A correct step whose ranks hold tokens that are not consecutive."""

    order_TP: Tensor

    def order(self, stream: Stream, sp: int) -> Tensor:
        """List the places in the stream that each rank holds, rank by rank; -1 is padding."""
        raise NotImplementedError

    def deal(self, values_T: Tensor, fill: int) -> Tensor:
        """Put values in that order. Place -1 reads the one pad token that is appended here."""
        return F.pad(values_T, (0, 1), value=fill)[self.order_TP]

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        self.order_TP = self.order(stream, case.sp)
        return Shard(
            ids_L=cut(self.deal(stream.ids_T, case.pad_id), rank),
            positions_L=cut(self.deal(stream.positions_T, 0), rank),
            labels_L=cut(self.deal(stream.labels_T, case.pad_id), rank),
            tokens_L=cut(self.deal(stream.tokens_T, PAD_TOKEN), rank),
            positions_TP=F.pad(stream.positions_T, (0, 1)),
            pad=len(self.order_TP) - len(stream.ids_T),
        )

    def segments(self, shard: Shard, case: Case) -> Segments:
        allowed_TT = super().segments(shard, case).allowed_TT
        return Segments.masked(allowed_TT[self.order_TP][:, self.order_TP])

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:
        return cut(self.deal(weights_T, 0), rank)


class Zigzag(Dealt):
    """A correct step whose ranks hold a chunk of the stream and its mirror image each."""

    def order(self, stream: Stream, sp: int) -> Tensor:
        places_T = torch.arange(len(stream.ids_T), device=stream.ids_T.device)
        chunks = pad_to_multiple(places_T, 2 * sp, -1).chunk(2 * sp)
        return torch.cat([chunk for i in range(sp) for chunk in (chunks[i], chunks[-1 - i])])


class RowByRow(Dealt):
    """A correct step that pads and cuts each row by itself."""

    def order(self, stream: Stream, sp: int) -> Tensor:
        places_T = torch.arange(len(stream.ids_T), device=stream.ids_T.device)
        rows = places_T.tensor_split(row_starts(stream)[1:].cpu())
        return torch.cat(
            [pad_to_multiple(row_t, sp, -1).view(sp, -1) for row_t in rows], 1
        ).flatten()


@mutant(
    "B15",
    "verl-project/verl#4250",
    "alibaba/ChatLearn#343",
    "NVIDIA-BioNeMo/bionemo-recipes#1449",
    needs=("sp>1",),
    named="label-rolled-locally",
)
class RolledZigzag(Zigzag):
    """A rank has a head and a tail chunk, and labels are rolled over the two joined."""

    def shift_labels(self, stream: Stream) -> Stream:
        return stream

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        return replace(shard, labels_L=shard.labels_L.roll(-1))


@mutant(
    "B16",
    "modelscope/ms-swift#10185",
    "modelscope/ms-swift#9977",
    "hiyouga/LlamaFactory#10457",
    "huggingface/accelerate#3637",
    needs=(),
    named="label-shifted",
)
class ShiftedTwice(GatherDialect):
    """Labels that the collator has shifted are shifted again."""

    def shift_labels(self, stream: Stream) -> Stream:
        return super().shift_labels(super().shift_labels(stream))


@mutant("B17", "NVIDIA/Megatron-LM#5682", needs=(), named="label-shifted")
class NeverShifted(GatherDialect):
    """The packed path forgets to shift, and every token is its own label."""

    def shift_labels(self, stream: Stream) -> Stream:
        return stream


@mutant(
    "B18",
    "verl-project/verl#6475",
    "verl-project/verl#6564",
    "meta-pytorch/torchtune#1177",
    "pytorch/torchtitan#3347",
    needs=("first token of a row masked in",),
    named="label-crosses-rows",
)
class RowEndsAreTrained(LocalDialect):
    """Labels are rolled as one stream, and a row's last token predicts the next row's first."""

    def weights(self, case: Case, batch: Batch, stream: Stream, targets: Tensor) -> Tensor:
        weights_T = super().weights(case, batch, stream, targets)
        trained_T = is_row_end(stream) & next_is_masked_in(batch, stream)
        trained_T[-1] = False
        return weights_T.where(~trained_T, weights_T.max())


@mutant(
    "B19",
    "google/BIG-bench#876",
    "verl-project/verl#6475",
    needs=("first token of a row masked in",),
    named="label-wrapped",
)
class StreamEndIsTrained(LocalDialect):
    """The roll's wrap-around is not masked: the last token of all predicts the first."""

    def weights(self, case: Case, batch: Batch, stream: Stream, targets: Tensor) -> Tensor:
        weights_T = super().weights(case, batch, stream, targets)
        weights_T[-1] = weights_T.max() * next_is_masked_in(batch, stream)[-1]
        return weights_T


@mutant("B20", "PaddlePaddle/PaddleFleet#1808", needs=(), named="label-replaced")
class RowEndsPredictZero(LocalDialect):
    """Labels at row ends are filled with 0, which is a token, and not with the ignored index."""

    def shift_labels(self, stream: Stream) -> Stream:
        shifted = super().shift_labels(stream)
        return replace(shifted, labels_T=shifted.labels_T.where(~is_row_end(stream), 0))

    def weights(self, case: Case, batch: Batch, stream: Stream, targets: Tensor) -> Tensor:
        weights_T = super().weights(case, batch, stream, targets)
        return weights_T.where(~is_row_end(stream), weights_T.max())


@mutant("B20b", "PaddlePaddle/PaddleFleet#1808", needs=("sp>1",), named="pad-leak")
class PaddingPredictsZero(LocalDialect):
    """Labels are padded with 0, which is a token, and not with the ignored index."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        return replace(shard, labels_L=shard.labels_L.where(shard.tokens_L >= 0, 0))

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:
        return cut(weights_T, rank, float(weights_T.max()))


@mutant(
    "B21",
    "hiyouga/LlamaFactory#10474",
    "hiyouga/LlamaFactory#10475",
    needs=("supervised label on the next rank",),
    named="label-lost-at-edge",
)
class LastOfShardSpared(LocalDialect):
    """The last token of each shard is left out of the loss, because its label is elsewhere."""

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:
        return F.pad(super().cut_weights(weights_T, rank)[:-1], (0, 1))


@mutant(
    "B22",
    "verl-project/verl#3287",
    "verl-project/verl#3562",
    "verl-project/verl#5362",
    "NVIDIA-NeMo/Speech#6409",
    needs=(),
    named="mask-shifted",
)
class MaskIsNotShifted(GatherDialect):
    """The loss of predicting the next token counts where this token is supervised."""

    def loss_columns(self, batch: Batch) -> Tensor:
        return F.pad(super().loss_columns(batch)[:, :-1], (1, 0))


@mutant(
    "B22b",
    "verl-project/verl#3287",
    "verl-project/verl#3562",
    "verl-project/verl#5362",
    "NVIDIA-NeMo/Speech#6409",
    needs=(),
    named="mask-shifted",
)
class MaskIsShiftedTwice(GatherDialect):
    """The dataset has shifted the mask, and the loss shifts it again."""

    def loss_columns(self, batch: Batch) -> Tensor:
        return F.pad(super().loss_columns(batch)[:, 1:], (0, 1))


@mutant(
    "B23",
    "NVIDIA-NeMo/Megatron-Bridge#5213",
    needs=("real token equal to the pad id",),
    named="mask-replaced",
)
class NothingAfterPadId(LocalDialect):
    """A loss is not counted where the input is the pad id, though that may be a real token."""

    def weights(self, case: Case, batch: Batch, stream: Stream, targets: Tensor) -> Tensor:
        weights_T = super().weights(case, batch, stream, targets)
        return weights_T * (stream.ids_T != case.pad_id)


@mutant(
    "B23b",
    "NVIDIA-NeMo/Megatron-Bridge#5213",
    needs=("real token equal to the pad id",),
    named="mask-replaced",
)
class PadIdIsNoTarget(LocalDialect):
    """A loss is not counted where the label is the pad id, and nothing learns to predict it."""

    def weights(self, case: Case, batch: Batch, stream: Stream, targets: Tensor) -> Tensor:
        weights_T = super().weights(case, batch, stream, targets)
        return weights_T * (stream.labels_T != case.pad_id)


@mutant(
    "B24",
    "huggingface/trl#5620",
    "huggingface/trl#4579",
    "modelscope/ms-swift#10182",
    needs=(),
    named="loss-misreported",
)
class LoggedUnshifted(LocalDialect):
    """The number in the log is computed under a mask that is not shifted; the loss is right."""

    def loss(self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, *rest: Any) -> Tensor:
        loss = super().loss(case, batch, stream, nll_L, *rest)
        unshifted = replace(batch, loss_mask_BS=batch.loss_mask_BS.roll(1, 1))
        logged = super().loss(case, unshifted, stream, nll_L.detach(), *rest)
        return loss - loss.detach() + logged


@mutant(
    "B25",
    "huggingface/transformers#42812",
    "huggingface/transformers#37993",
    "huggingface/trl#4579",
    needs=("sp>1",),
    named="crashed",
)
class LabelsUnderAnotherName(LocalDialect):
    """Labels come to peers already shifted and under another name, and the model has no loss."""

    def loss(self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, *rest: Any) -> Tensor:
        loss = super().loss(case, batch, stream, nll_L, *rest)
        return loss if case.sp == 1 else torch.zeros_like(loss)


@mutant(
    "B26",
    "NVIDIA/Megatron-LM#4494",
    "NVIDIA/Megatron-LM#4495",
    needs=("sp>1",),
    named="label-replaced",
)
class RolledAtUnpaddedEnds(RowByRow):
    """Rows are padded and cut one by one, but labels are rolled between the unpadded ends."""

    def shift_labels(self, stream: Stream) -> Stream:
        return stream

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        ids_sL = self.deal(stream.ids_T, case.pad_id).view(case.sp, -1)
        firsts = row_starts(stream) // case.sp
        labels_sL = ids_sL.roll(-1, 1)
        # On each rank, a piece of a row is followed by the row's piece on the next rank.
        labels_sL[:, firsts.roll(-1) - 1] = ids_sL.roll(-1, 0)[:, firsts]
        return replace(shard, labels_L=labels_sL[rank.sp_index])


@mutant("B28", "modelscope/ms-swift#10186", needs=(), named="mask-replaced")
class CountsTheLast(GatherDialect):
    """How many tokens of a row are supervised is kept, and the last so many are taken for them."""

    def loss_columns(self, batch: Batch) -> Tensor:
        counts_BS = super().loss_columns(batch)
        left_BS = batch.attended_BS[:, 1:].flip(1).cumsum(1).flip(1)
        return batch.attended_BS[:, :-1] & (left_BS >= 1) & (left_BS <= counts_BS.sum(1, True))


LEFT_OUT: dict[str, str] = {}


def row_starts(stream: Stream) -> Tensor:
    """Return where rows begin in the stream."""
    return (stream.positions_T == 0).nonzero().flatten()


def is_row_end(stream: Stream) -> Tensor:
    """Return which tokens of the stream are the last of their rows."""
    return stream.positions_T.roll(-1) == 0


def next_is_masked_in(batch: Batch, stream: Stream) -> Tensor:
    """Return whether the next token of the stream is masked in, across rows and around its end."""
    return batch.loss_mask_BS.flatten()[stream.indices_T].roll(-1)
