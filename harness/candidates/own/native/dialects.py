"""Two dialects of the step are alive in the field.

They differ in what each rank's loss is, and therefore in what the reduction has to do; either is
right, and half of one with half of the other is off by the number of ranks:

`native-gather`  gathers every token's loss, computes the whole replica's loss on each rank,
                 and averages gradients over all ranks
`native-local`   computes the share of this rank's tokens in the global loss, and sums

Legend: B rows, S longest row, L tokens on this rank, T tokens of the stream, P pad tokens.
"""

from torch import Tensor
from torch.nn import functional as F

from harness.candidates.own.native.packing import Batch, Stream, cut, pad_to
from harness.candidates.own.native.reduction import GatherTokens
from harness.candidates.own.native.ulysses import Ulysses, supervised
from harness.candidates.protocol import Rank
from harness.case import Case


class GatherDialect(Ulysses):
    """Full loss on every rank, mean over all ranks."""

    name = "native-gather"

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        nll_T = self.gather_losses(nll_L, rank)[: stream.ids_T.shape[0]]
        # Back to the padded batch, zero where nothing was computed; then as in plain training.
        nll_BS = nll_T.new_zeros(batch.ids_BS.numel()).index_put((stream.indices_T,), nll_T)
        counts_BS = self.counts(batch)
        terms_BS = nll_BS.view(batch.ids_BS.shape)[:, :-1] * counts_BS
        if case.loss == "token-mean":
            # The mean over replicas divides by dp what the global count already divided.
            return terms_BS.sum() / targets.clamp(min=1) * case.dp
        if case.loss == "micro-mean":
            return terms_BS.sum() / counts_BS.sum().clamp(min=1) / case.micro_batches
        row_means_B = terms_BS.sum(1) / counts_BS.sum(1).clamp(min=1)
        return row_means_B.sum() / (len(case.rows) / case.dp)

    def gather_losses(self, nll_L: Tensor, rank: Rank) -> Tensor:
        """The losses of the whole padded stream."""
        nll_TP: Tensor = GatherTokens.apply(nll_L, rank.sp)  # type: ignore[no-untyped-call]
        return nll_TP

    def counts(self, batch: Batch) -> Tensor:
        """Which columns of the padded batch are loss terms."""
        return supervised(batch)

    def divisor(self, rank: Rank) -> int:
        return rank.world.size()


class LocalDialect(Ulysses):
    """Local share of the global loss, sum over all ranks."""

    name = "native-local"

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        weights_T = self.weights(case, batch, stream, targets)
        return (nll_L * self.cut_weights(weights_T.to(nll_L.dtype), rank)).sum()

    def weights(self, case: Case, batch: Batch, stream: Stream, targets: Tensor) -> Tensor:
        """The weight of every token of the stream in the global loss."""
        return token_weights(case, batch, stream, targets)

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:
        """This rank's piece of them; padding weighs nothing."""
        return cut(pad_to(weights_T, rank.sp.size(), 0), rank.sp.size(), rank.sp_index)

    def divisor(self, rank: Rank) -> int:  # noqa: ARG002 - nobody is averaged over
        return 1


def token_weights(case: Case, batch: Batch, stream: Stream, targets: Tensor) -> Tensor:
    """The weight of every token of the stream in the global loss, zero where unsupervised."""
    counts_BS = supervised(batch)
    per_row_B = counts_BS.sum(1, keepdim=True)
    scale = {
        "token-mean": targets,
        "micro-mean": per_row_B.sum() * case.dp * case.micro_batches,
        "row-mean": per_row_B * len(case.rows),
    }[case.loss]
    weights_BS = F.pad(counts_BS / scale.clamp(min=1).double(), (0, 1))
    return weights_BS.flatten()[stream.indices_T]
