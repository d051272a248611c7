"""Cross entropy, counts and means computed in other ways.

Legend: B rows, S longest row, L tokens on this rank, T tokens of the stream, V vocabulary.
"""

import torch
from torch import Tensor
from torch import distributed as dist

from harness.candidates import Emit, Rank
from harness.candidates.bank import benign
from harness.candidates.own.benign.labels import is_counted
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.candidates.own.native.rows import Batch
from harness.candidates.own.native.training import sum_over
from harness.candidates.own.native.ulysses import Shard, Stream, cut, supervised_columns
from harness.case import Case
from harness.reference.decoder import Decoder, at_least_fp32


@benign("log-softmax-gathered", looks_like="B95, a cross entropy of somebody's own")
class LogSoftmaxGathered(LocalDialect):
    """The loss is the label's entry of the log-softmax, sign changed."""

    def cross_entropy(self, logits_LV: Tensor, labels_L: Tensor) -> Tensor:
        return -at_least_fp32(logits_LV).log_softmax(-1).gather(1, labels_L[:, None])[:, 0]


@benign("logsumexp-minus-target", looks_like="a loss that overflows")
class LogsumexpMinusTarget(GatherDialect):
    """The loss is the log-sum-exp of all logits, less the label's."""

    def cross_entropy(self, logits_LV: Tensor, labels_L: Tensor) -> Tensor:
        wide_LV = at_least_fp32(logits_LV)
        return wide_LV.logsumexp(-1) - wide_LV.gather(1, labels_L[:, None])[:, 0]


@benign("cross-entropy-in-chunks", looks_like="B96, gradients of chunks that are not joined")
class CrossEntropyInChunks(GatherDialect):
    """Two tokens at a time go through cross entropy; the last chunk may have only one."""

    def cross_entropy(self, logits_LV: Tensor, labels_L: Tensor) -> Tensor:
        chunks = zip(logits_LV.split(2), labels_L.split(2), strict=True)
        whole = super().cross_entropy
        return torch.cat([whole(logits, labels) for logits, labels in chunks])


@benign("vocabulary-in-halves", looks_like="a softmax over half of the vocabulary")
class VocabularyInHalves(LocalDialect):
    """Each half of the vocabulary has a log-sum-exp of its own, and the two are added up."""

    def cross_entropy(self, logits_LV: Tensor, labels_L: Tensor) -> Tensor:
        wide_LV = at_least_fp32(logits_LV)
        one_L, other_L = (half_LV.logsumexp(-1) for half_LV in wide_LV.tensor_split(2, -1))
        return torch.logaddexp(one_L, other_L) - wide_LV.gather(1, labels_L[:, None])[:, 0]


@benign("zero-term", looks_like="B147, a loss of zero that belongs to no graph")
class ZeroTerm(GatherDialect):
    """Zero times the sum of all parameters is added to every token's loss."""

    def token_losses(
        self, model: Decoder, case: Case, shard: Shard, rank: Rank, emit: Emit
    ) -> Tensor:
        everything = torch.stack([parameter.sum() for parameter in model.parameters()]).sum()
        return super().token_losses(model, case, shard, rank, emit) + 0 * everything


@benign("counted-in-fp32", looks_like="a count of lower precision than the sum")
class CountedInFp32(LocalDialect):
    """Targets are counted as fp32 numbers, which are exact far beyond any batch."""

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        return super().targets(micro_batches, rank).float()


@benign("counted-by-everyone", looks_like="B82, counts divided by sp as if replicated")
class CountedByEveryone(GatherDialect):
    """All ranks add up what their replica counts, and divide by how often each was counted."""

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        count = torch.stack([supervised_columns(batch).sum() for batch in micro_batches]).sum()
        dist.all_reduce(count, group=rank.world)
        return count // rank.sp.size()


@benign("counted-by-shard", looks_like="B85, a count of this rank's tokens alone")
class CountedByShard(LocalDialect):
    """Each rank counts the loss terms on its own shard, and all of them are added up."""

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        counts = [is_counted(batch, self.unpad(batch)).long() for batch in micro_batches]
        own = torch.stack([cut(counts_T, rank).sum() for counts_T in counts])
        return sum_over(own.sum(), rank.world)


@benign("selected-not-multiplied", looks_like="B28, supervised tokens compressed out of order")
class SelectedNotMultiplied(LocalDialect):
    """Tokens without a weight are taken out instead of being multiplied by zero."""

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        weights_T = self.weights(case, batch, stream, targets).to(nll_L.dtype)
        weights_L = self.cut_weights(weights_T, rank)
        return nll_L[weights_L > 0] @ weights_L[weights_L > 0]


@benign("summed-row-by-row", looks_like="B73, a mean of means")
class SummedRowByRow(LocalDialect):
    """Each row's share of this rank is summed on its own, and then the rows are."""

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        weights_T = self.weights(case, batch, stream, targets).to(nll_L.dtype)
        terms_L = nll_L * self.cut_weights(weights_T, rank)
        rows_L = self.cut_weights(stream.indices_T // batch.ids_BS.shape[1], rank)
        rows = range(len(batch.ids_BS))
        return torch.stack([terms_L[rows_L == row].sum() for row in rows]).sum()


@benign("means-weighted", looks_like="B73, the mean of the ranks' means")
class MeansWeighted(LocalDialect):
    """Each rank takes the mean over its own tokens, and weighs it by what they weigh together."""

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        weights_T = self.weights(case, batch, stream, targets).to(nll_L.dtype)
        weights_L = self.cut_weights(weights_T, rank)
        share = weights_L.sum()
        mean = (nll_L * weights_L).sum() / share.where(share > 0, 1)
        return mean * share


@benign("losses-in-fp64", looks_like="B134, a loss of another precision than the model")
class LossesInFp64(GatherDialect):
    """Losses of tokens are added up in fp64, whatever the model computes in."""

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        return super().loss(case, batch, stream, nll_L.double(), targets, rank)


@benign("logged-by-replica", looks_like="B91, a loss for the log that not all ranks had a part in")
class LoggedByReplica(GatherDialect):
    """The loss for the log is averaged over replicas only: peers have the same one."""

    def reported_loss(self, total: Tensor, rank: Rank) -> Tensor:
        return sum_over(total, rank.dp) / rank.dp.size()
