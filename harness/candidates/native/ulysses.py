"""The Ulysses training step, to be read from top to bottom.

rows -> padded batch -> flat stream -> labels shifted -> padded and cut into shards -> model with
all-to-all attention -> losses of this rank's tokens -> loss -> backward -> reduction over ranks.

Two dialects are alive in the field. They differ in what each rank's loss is, and therefore in
what the reduction has to do; either is right, and half of one with half of the other is off by
the number of ranks:

`native-gather`  gathers every token's loss, computes the whole replica's loss on each rank,
                 and averages gradients over all ranks
`native-local`   computes the share of this rank's tokens in the global loss, and sums

Legend: L tokens on this rank, T tokens of the stream, V vocabulary; see also `packing`.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.native.attention import KERNELS, Segments, ulysses_attention
from harness.candidates.native.packing import (
    Batch,
    Shard,
    Stream,
    collate,
    cut,
    pad_to,
    shard,
    shift,
    unpad,
)
from harness.candidates.native.reduction import GatherTokens, sum_gradients, summed
from harness.candidates.native.rows import Sample, check_peers, my_samples, split
from harness.candidates.protocol import Emit, Rank
from harness.case import LEARNING_RATE, Case
from harness.reference.decoder import Decoder, at_least_fp32
from harness.reference.weights import TORCH_DTYPES


class Ulysses:
    """The step; a dialect says what the loss is and how ranks are reduced."""

    name: str

    def supports(self, case: Case) -> str | None:
        if case.kernel not in KERNELS:
            return f"kernel={case.kernel} is not wired into the native path; use eager or sdpa"
        return None

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        model = self.model(case, rank)
        samples = self.samples(case, rank)
        check_peers(samples, rank)
        for _ in range(case.steps - 1):
            self.step(model, case, samples, rank, silent)
            self.update(model)
        self.step(model, case, samples, rank, emit)

    def step(
        self, model: Decoder, case: Case, samples: list[Sample], rank: Rank, emit: Emit
    ) -> None:
        """Forward, backward and reduction on every micro-batch: all but the optimizer."""
        micro_batches = [
            self.collate(case, part, rank) for part in split(samples, case.micro_batches)
        ]
        targets = summed(torch.stack([supervised(b).sum() for b in micro_batches]).sum(), rank.dp)
        total = torch.zeros((), device=rank.device)
        for batch in micro_batches:
            stream = self.shifted(unpad(batch))
            mine = self.shard(case, stream, rank)
            nll_L = self.token_losses(model, case, mine, rank, emit)
            emit("nll", nll_L, mine.tokens_L)
            loss = self.loss(case, batch, stream, nll_L, targets, rank)
            loss.backward()
            total = total + loss.detach()

        emit("loss", self.reported(total, rank))
        self.reduce(model, rank)
        for name, parameter in model.named_parameters():
            emit(f"grad.{name}", gradient(parameter))

    def update(self, model: Decoder) -> None:
        """Plain SGD; by hand, because the first optimizer of a process takes torch a second."""
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(gradient(parameter), alpha=-LEARNING_RATE)
        model.zero_grad()

    def model(self, case: Case, rank: Rank) -> Decoder:
        return Decoder(case, TORCH_DTYPES[case.dtype], rank.device)

    def samples(self, case: Case, rank: Rank) -> list[Sample]:
        return my_samples(case, rank)

    def collate(self, case: Case, samples: list[Sample], rank: Rank) -> Batch:
        return collate(samples, case.pad_id, rank.device)

    def shifted(self, stream: Stream) -> Stream:
        return replace(stream, labels_T=shift(stream.labels_T))

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        return shard(stream, case.pad_id, rank.sp.size(), rank.sp_index)

    def token_losses(
        self, model: Decoder, case: Case, mine: Shard, rank: Rank, emit: Emit
    ) -> Tensor:
        """The loss of each of this rank's tokens, padding included."""

        def tap(key: str, tensor: Tensor) -> None:
            emit(key, tensor, mine.tokens_L)

        segments = Segments.of(mine.positions_TP, case.window)
        tap("ids", mine.ids_L)
        tap("positions", mine.positions_L)
        tap("labels", mine.labels_L)
        logits_LV = model(
            mine.ids_L,
            mine.positions_L,
            lambda q, k, v: self.attend(q, k, v, segments, case, rank),
            tap,
        )
        return F.cross_entropy(at_least_fp32(logits_LV), mine.labels_L, reduction="none")

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, segments: Segments, case: Case, rank: Rank
    ) -> Tensor:
        return ulysses_attention(
            q, k, v, segments=segments, kernel=KERNELS[case.kernel], group=rank.sp
        )

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        """What this rank calls backward on, for one micro-batch."""
        raise NotImplementedError

    def reported(self, total: Tensor, rank: Rank) -> Tensor:
        """The loss that a training log would show."""
        raise NotImplementedError

    def reduce(self, model: Decoder, rank: Rank) -> None:
        """Turn local gradients into what the optimizer sees."""
        raise NotImplementedError


class GatherDialect(Ulysses):
    """Full loss on every rank, mean over all ranks."""

    name = "native-gather"

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        nll_TP: Tensor = GatherTokens.apply(nll_L, rank.sp)  # type: ignore[no-untyped-call]
        nll_T = nll_TP[: stream.ids_T.shape[0]]
        # Back to the padded batch, zero where nothing was computed; then as in plain training.
        nll_BS = nll_T.new_zeros(batch.ids_BS.numel()).index_put((stream.indices_T,), nll_T)
        counts_BS = supervised(batch)
        terms_BS = nll_BS.view(batch.ids_BS.shape)[:, :-1] * counts_BS
        if case.loss == "token-mean":
            # The mean over replicas divides by dp what the global count already divided.
            return terms_BS.sum() / targets.clamp(min=1) * case.dp
        if case.loss == "micro-mean":
            return terms_BS.sum() / counts_BS.sum().clamp(min=1) / case.micro_batches
        row_means_B = terms_BS.sum(1) / counts_BS.sum(1).clamp(min=1)
        return row_means_B.sum() / (len(case.rows) / case.dp)

    def reported(self, total: Tensor, rank: Rank) -> Tensor:
        return summed(total, rank.world) / rank.world.size()

    def reduce(self, model: Decoder, rank: Rank) -> None:
        sum_gradients(model, rank.world, divide_by=rank.world.size())


class LocalDialect(Ulysses):
    """Local share of the global loss, sum over all ranks."""

    name = "native-local"

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        sp = rank.sp.size()
        weights_T = token_weights(case, batch, stream, targets)
        weights_L = cut(pad_to(weights_T.to(nll_L.dtype), sp, 0), sp, rank.sp_index)
        return (nll_L * weights_L).sum()

    def reported(self, total: Tensor, rank: Rank) -> Tensor:
        return summed(total, rank.world)

    def reduce(self, model: Decoder, rank: Rank) -> None:
        sum_gradients(model, rank.world, divide_by=1)


def silent(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
    """Steps before the one that is judged emit nothing."""


def gradient(parameter: Tensor) -> Tensor:
    """The gradient; a parameter that backward never reached has a gradient of zeros."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def supervised(batch: Batch) -> Tensor:
    """Columns 0 to S-2 whose next column is a real, supervised target of the same row."""
    return batch.loss_mask_BS[:, 1:] & batch.attended_BS[:, :-1]


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
