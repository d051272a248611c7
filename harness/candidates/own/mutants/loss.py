"""Bugs in the loss, its mask and its normalisation.

Legend: L tokens on this rank, T tokens of the stream, V vocabulary.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F

from harness.candidates import Rank
from harness.candidates.bank import mutant
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.rows import Batch, Sample
from harness.candidates.own.native.training import sum_over
from harness.candidates.own.native.ulysses import Shard, Stream, cut, supervised_columns
from harness.case import Case
from harness.reference.decoder import Decoder, at_least_fp32

TILES = 4


def count_own_terms(micro_batches: list[Batch], rank: Rank) -> Tensor:
    """Count the loss terms of the step that belong to this rank's own tokens."""
    terms = [F.pad(supervised_columns(b).int(), (0, 1))[b.attended_BS] for b in micro_batches]
    return torch.stack([cut(terms_T, rank).sum() for terms_T in terms]).sum()


@mutant(
    "B73",
    "PrimeIntellect-ai/prime-rl#1957",
    "PrimeIntellect-ai/prime-rl#1960",
    "pytorch/torchtitan#1842",
    "pytorch/torchtitan#2206",
    needs=("ranks>1",),
    named="denominator-per-rank",
)
class MeanOfRankMeans(LocalDialect):
    """Each rank divides by its own number of targets, and the means are averaged."""

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        return count_own_terms(micro_batches, rank) * rank.world.size()


@mutant(
    "B74",
    "huggingface/transformers#34191",
    "huggingface/transformers#34198",
    "huggingface/transformers#35203",
    "verl-project/verl#906",
    "verl-project/verl#2919",
    "verl-project/verl#3332",
    needs=("micro-batches with unequal counts",),
    named="denominator-per-part",
)
class MeanOfMicroBatchMeans(LocalDialect):
    """Micro-batches' means are averaged, although some have more targets than others."""

    def loss(self, case: Case, batch: Batch, *rest: Any) -> Tensor:
        stream, nll_L, _targets, rank = rest
        of_batch = self.targets([batch], rank) * case.micro_batches
        return super().loss(case, batch, stream, nll_L, of_batch, rank)


@mutant(
    "B75",
    "verl-project/verl#5625",
    "verl-project/verl#5626",
    "verl-project/verl#5641",
    "verl-project/verl#7321",
    "verl-project/verl#7913",
    "verl-project/verl#2857",
    needs=("micro_batches>1",),
    named="denominator-per-part",
)
class MicroBatchesByRows(LocalDialect):
    """Each micro-batch's token mean is scaled by its share of the rows, not of the targets."""

    def loss(self, case: Case, batch: Batch, *rest: Any) -> Tensor:
        stream, nll_L, _targets, rank = rest
        times_smaller = len(case.rows) / case.dp / len(batch.ids_BS)
        of_batch = self.targets([batch], rank) * times_smaller
        return super().loss(case, batch, stream, nll_L, of_batch, rank)


@mutant("B76", "pytorch/torchtitan#4167", needs=(), named="loss-misreported")
class ReportsMeanOfMeans(LocalDialect):
    """The log averages the means of batches, whatever their numbers of targets."""

    def loss(self, case: Case, *rest: Any) -> Tensor:
        self.logged: Tensor = super().loss(replace(case, loss="micro-mean"), *rest).detach()
        return super().loss(case, *rest)

    def forward_backward(self, *arguments: Any) -> Tensor:
        super().forward_backward(*arguments)
        return self.logged


@mutant(
    "B77",
    "NVIDIA/Megatron-LM#1764",
    "NVIDIA-NeMo/Speech#14488",
    "axolotl-ai-cloud/axolotl#3026",
    "allenai/OLMo-core#452",
    "allenai/OLMo-core#657",
    needs=("rank with no supervised token",),
    named="non-finite",
)
class MeanOverNothing(LocalDialect):
    """Peers' means are weighted by their shares; that of a rank without targets is 0/0."""

    def loss(self, case: Case, batch: Batch, stream: Stream, *rest: Any) -> Tensor:
        nll_L, targets, rank = rest
        if rank.sp.size() == 1:
            return super().loss(case, batch, stream, nll_L, targets, rank)
        weights_T = self.weights(case, batch, stream, targets)
        weights_L = self.cut_weights(weights_T.to(nll_L.dtype), rank)
        mean: Tensor = (nll_L * weights_L).sum() / weights_L.sum()
        return mean * weights_L.sum()


@mutant("B78", "axolotl-ai-cloud/axolotl#3033", needs=("ranks>1",), named="denominator-per-rank")
class NanMean(LocalDialect):
    """Means of ranks are averaged, and a rank without targets, whose mean is NaN, is skipped."""

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        own = count_own_terms(micro_batches, rank)
        return own * sum_over((own > 0).int(), rank.world)


@mutant("B79", "axolotl-ai-cloud/axolotl#3026", needs=("ranks>1",), named="denominator-clamped")
class ClampedBeforeTheSum(LocalDialect):
    """Each rank counts at least one target before counts are summed: empty ranks invent some."""

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        return sum_over(count_own_terms(micro_batches, rank).clamp(min=1), rank.world)


@mutant("B80", "NVIDIA-NeMo/Megatron-Bridge#3117", needs=("sp>1",), named="non-finite")
class ZeroTimesNan(LocalDialect):
    """Padding attends to nothing and its loss is NaN; a weight of zero does not take it out."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        allowed_TT = super().segments(shard, case).allowed_TT
        allowed_TT[len(allowed_TT) - shard.pad :] = False
        return Segments.masked(allowed_TT)


@mutant(
    "B81",
    "modelscope/ms-swift#9152",
    "huggingface/transformers#48167",
    needs=("sp>1",),
    named="denominator-per-rank",
)
class GatheredOverLocal(GatherDialect):
    """The losses of all peers are divided by the number of targets in this rank's labels."""

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        return sum_over(count_own_terms(micro_batches, rank), rank.dp)


@mutant(
    "B82",
    "huggingface/transformers#46775",
    "huggingface/transformers#39674",
    "huggingface/transformers#45994",
    needs=("sp>1",),
    named="gradient-times-sp",
)
class ShardsCountedAsCopies(LocalDialect):
    """The sum of the shards' counts is divided by sp, as if each rank had counted everything."""

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        return sum_over(count_own_terms(micro_batches, rank).double(), rank.world) / rank.sp.size()


@mutant("B83", "EvolvingLMMs-Lab/lmms-engine#130", needs=(), named="denominator-wrong-count")
class CountsAttendedTokens(LocalDialect):
    """The sum over targets is divided by the number of all tokens that are not padding."""

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        return sum_over(torch.cat([b.attended_BS.flatten() for b in micro_batches]).sum(), rank.dp)


@mutant(
    "B84",
    "huggingface/transformers#46204",
    "Liquid4All/liquid-finetune#40",
    "ByteDance-Seed/VeOmni#678",
    "modelscope/ms-swift#9167",
    needs=("first token of a row masked in",),
    named="denominator-wrong-count",
)
class CountsBeforeTheShift(GatherDialect):
    """Targets are counted before the shift, with rows' first tokens, which nothing predicts."""

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        return sum_over(
            torch.cat([b.loss_mask_BS.flatten() for b in micro_batches]).sum(), rank.dp
        )


@mutant(
    "B85",
    "NVIDIA/Megatron-LM#7452",
    "NVIDIA/Megatron-LM#7513",
    needs=("ranks>1",),
    named="denominator-per-rank",
)
class TrainsOnLocalMean(LocalDialect):
    """The loss shown is global; each rank trains on its own sum over its own count, averaged."""

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        self.own = count_own_terms(micro_batches, rank) * rank.world.size()
        return super().targets(micro_batches, rank)

    def loss(self, case: Case, batch: Batch, *rest: Any) -> Tensor:
        stream, nll_L, targets, rank = rest
        shown = super().loss(case, batch, stream, nll_L, targets, rank)
        trained = super().loss(case, batch, stream, nll_L, self.own, rank)
        return trained + (shown - trained).detach()


@mutant(
    "B86",
    "verl-project/verl#5983",
    "verl-project/verl#5993",
    "verl-project/verl#6049",
    "verl-project/verl#5869",
    needs=("sp>1",),
    named="denominator-per-rank",
)
class CountsOverReplicasOnly(LocalDialect):
    """Each rank counts its own shard's targets, and counts are summed over replicas only."""

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        return sum_over(count_own_terms(micro_batches, rank), rank.dp)


@mutant("B86b", "verl-project/verl#5869", needs=("sp>1",), named="gradient-over-sp")
class CountsCopies(LocalDialect):
    """Peers count the same targets, the whole sequence's, and their counts are summed."""

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        return sum_over(super().targets(micro_batches, rank), rank.sp)


@mutant(
    "B87",
    "NVIDIA/Megatron-LM#7452",
    "NVIDIA/Megatron-LM#7498",
    needs=("supervised label on the next rank",),
    named="gradient-partial",
)
class SkipsRankWithoutMask(LocalDialect):
    """A rank whose unshifted mask is empty throws its gradient away, though it has a target."""

    def loss(self, case: Case, batch: Batch, stream: Stream, *rest: Any) -> Tensor:
        *_, rank = rest
        share = super().loss(case, batch, stream, *rest)
        mask_T = batch.loss_mask_BS.flatten()[stream.indices_T]
        if not self.cut_weights(mask_T.int(), rank).any():
            share.register_hook(torch.zeros_like)
        return share


@mutant("B88", "inclusionAI/AReno#78", needs=(), named="mask-replaced")
class PaddedBranchDropsTheMask(LocalDialect):
    """Where several rows are padded to a batch the loss mask is dropped: all tokens count."""

    def collate(self, case: Case, samples: list[Sample], rank: Rank) -> Batch:
        batch = super().collate(case, samples, rank)
        return batch if len(samples) == 1 else replace(batch, loss_mask_BS=batch.attended_BS)


@mutant("B89", "radixark/miles#3231", needs=(), named="gradient-scaled")
class TrainsOnTheSum(LocalDialect):
    """The sum over targets is trained on; only the loss that is shown is divided by the count."""

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        self.count = super().targets(micro_batches, rank)
        return self.count

    def backward(self, loss: Tensor) -> None:
        super().backward(loss * self.count)


@mutant("B90", "NovaSky-AI/SkyRL#1420", needs=("sp>1",), named="loss-misreported")
class ReportsTwiceReduced(GatherDialect):
    """The loss for the log is whole on every rank, and summed over peers once more."""

    def reported_loss(self, total: Tensor, rank: Rank) -> Tensor:
        return sum_over(super().reported_loss(total, rank), rank.sp)


@mutant(
    "B91",
    "pytorch/torchtitan#761",
    "pytorch/torchtitan#3313",
    "pytorch/torchtitan#3329",
    "modelscope/ms-swift#9380",
    needs=("ranks>1",),
    named="replica-split",
)
class ReportsItsOwn(LocalDialect):
    """The log shows each rank's own share of the loss, not reduced."""

    def reported_loss(self, total: Tensor, rank: Rank) -> Tensor:  # noqa: ARG002 - the bug
        return total


@mutant("B92", "InternLM/xtuner#1656", needs=("sp>1",), named="gradient-times-sp")
class SumsWholeLosses(GatherDialect):
    """Each peer computes the whole sequence's loss, and peers are summed like shares of it."""

    def divisor(self, rank: Rank) -> int:
        return rank.dp.size()


class _SumWithOtherBackward(torch.autograd.Function):
    """A weighted sum whose backward uses other weights than its forward."""

    @staticmethod
    def forward(ctx: FunctionCtx, nll_L: Tensor, weights_L: Tensor, others_L: Tensor) -> Tensor:
        ctx.save_for_backward(others_L)
        return (nll_L * weights_L).sum()

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None]:
        (others_L,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return grad * others_L, None, None


@mutant("B93", "deepspeedai/DeepSpeed#8587", needs=("sp>1",), named="denominator-per-rank")
class BackwardOfShardMeans(LocalDialect):
    """Forward weights shards by their targets; the hand-written backward weights them alike."""

    def loss(self, case: Case, batch: Batch, stream: Stream, *rest: Any) -> Tensor:
        nll_L, targets, rank = rest
        weights_T = self.weights(case, batch, stream, targets).to(nll_L.dtype)
        weights_L = self.cut_weights(weights_T, rank)
        mean_L = (weights_L / weights_L.sum()).nan_to_num()
        alike_L = mean_L * weights_T.sum() / rank.sp.size()
        share: Tensor = _SumWithOtherBackward.apply(nll_L, weights_L, alike_L)  # type: ignore[no-untyped-call]
        return share


@mutant("B94", "deepspeedai/DeepSpeed#8434", needs=(), named="crashed")
class TilesWithoutTokens(LocalDialect):
    """Cross-entropy runs over a fixed number of tiles, also where there are tokens for fewer."""

    def cross_entropy(self, logits_LV: Tensor, labels_L: Tensor) -> Tensor:
        logits, labels = at_least_fp32(logits_LV).chunk(TILES), labels_L.chunk(TILES)
        return torch.cat(
            [F.cross_entropy(logits[i], labels[i], reduction="none") for i in range(TILES)]
        )


class _FirstGradientForAll(torch.autograd.Function):
    """The identity; backward gives every token the gradient of the first."""

    @staticmethod
    def forward(_ctx: FunctionCtx, nll_L: Tensor) -> Tensor:
        return nll_L.clone()

    @staticmethod
    def backward(_ctx: FunctionCtx, grad_L: Tensor) -> Tensor:
        return grad_L[:1].expand_as(grad_L)


@mutant(
    "B95",
    "linkedin/Liger-Kernel#678",
    "linkedin/Liger-Kernel#968",
    needs=(),
    named="gradient-partial",
)
class FusedCrossEntropy(LocalDialect):
    """Fused cross-entropy scales its ready-made gradient by one number, not by one per token."""

    def cross_entropy(self, logits_LV: Tensor, labels_L: Tensor) -> Tensor:
        nll_L = super().cross_entropy(logits_LV, labels_L)
        fused_L: Tensor = _FirstGradientForAll.apply(nll_L)  # type: ignore[no-untyped-call]
        return fused_L


@mutant(
    "B96",
    "pytorch/torchtitan#3412",
    "pytorch/torchtitan#3418",
    needs=("ranks>1",),
    named="replica-split",
)
class HeadTakenForReplicated(LocalDialect):
    """The head's gradient, a partial sum on each rank, is taken for whole and not reduced."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        assert model.head.grad is not None
        partial = model.head.grad.clone()
        super().reduce(model, rank)
        model.head.grad.copy_(partial)


@mutant(
    "B97",
    "OpenRLHF/OpenRLHF#923",
    "linkedin/Liger-Kernel#329",
    needs=(),
    named="denominator-per-part",
)
class PackedRowsJoined(LocalDialect):
    """Packing turns the mean of the rows' means into one mean over all tokens."""

    def loss(self, case: Case, *rest: Any) -> Tensor:
        packed = replace(case, loss="token-mean") if case.loss == "row-mean" else case
        return super().loss(packed, *rest)


@mutant(
    "B98", "modelscope/ms-swift#9973", "modelscope/ms-swift#9977", needs=("sp>1",), named="crashed"
)
class LocalLabelsGatheredLosses(GatherDialect):
    """A statistic picks from the losses of all peers by a mask made of this rank's labels."""

    def loss(self, case: Case, batch: Batch, stream: Stream, *rest: Any) -> Tensor:
        nll_L, _targets, rank = rest
        counted_L = self.shard(case, stream, rank).labels_L != case.pad_id
        self.gather_losses(nll_L.detach(), rank)[counted_L].mean()
        return super().loss(case, batch, stream, *rest)


@mutant("B99", "pytorch/torchtitan#4168", needs=("sp>1",), named="pad-leak")
class PaddingCounts(LocalDialect):
    """The tokens that pad the stream for sequence parallelism count like real ones."""

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:
        return cut(weights_T, rank, float(weights_T.max()))


LEFT_OUT: dict[str, str] = {}
