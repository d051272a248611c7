"""The Ulysses training step, to be read from top to bottom.

rows -> padded batch -> flat stream -> labels shifted -> padded and cut into shards -> model with
all-to-all attention -> losses of this rank's tokens -> loss -> backward -> reduction over ranks.

What each rank's loss is, and therefore what the reduction has to do, is the dialect's: see
`dialects`.

Legend: L tokens on this rank, T tokens of the stream, V vocabulary, N heads, K kv heads, M heads
on this rank, C kv heads on this rank, H head dim; see also `packing`.
"""

from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from harness.candidates.own.native.attention import Kernel, Segments, repeat_for
from harness.candidates.own.native.compiled import compile_layers
from harness.candidates.own.native.exchange import gather_tokens_together, scatter_tokens
from harness.candidates.own.native.kernels import KERNELS
from harness.candidates.own.native.packing import (
    Batch,
    Shard,
    Stream,
    collate,
    shard,
    shift,
    unpad,
)
from harness.candidates.own.native.reduction import reduced_apart, sum_gradients, summed
from harness.candidates.own.native.rows import Sample, check_peers, my_samples, split
from harness.candidates.own.native.usable import unsupported
from harness.candidates.own.native.wrappers import WRAPPERS
from harness.candidates.protocol import Emit, Rank
from harness.case import LEARNING_RATE, Case
from harness.reference.decoder import Decoder, Head, at_least_fp32
from harness.reference.weights import TORCH_DTYPES


class Ulysses:
    """The step; every method is one thing that training scripts get wrong."""

    name: str
    # More than that many logits are computed, and forgotten, a few tokens at a time.
    logits_at_once = 10 << 20

    def supports(self, case: Case) -> str | None:
        return unsupported(case)

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        model = self.wrapped(self.model(case, rank), case, rank)
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
            self.collate(case, part, rank) for part in self.split(samples, case.micro_batches)
        ]
        targets = self.targets(micro_batches, rank)
        total = torch.zeros((), device=rank.device)
        for number, batch in enumerate(micro_batches, 1):
            with self.accumulation(model, case, rank, last=number == len(micro_batches)):
                total = total + self.forward_backward(model, case, batch, targets, rank, emit)

        emit("loss", self.reported(total, rank))
        if case.wrapper == "none" and case.sync == "last":
            self.reduce(model, rank)
        wrapper = WRAPPERS[case.wrapper]
        for name, parameter in wrapper.unwrapped(model).named_parameters():
            emit(f"grad.{name}", wrapper.whole(gradient(parameter)))

    def forward_backward(
        self, model: Decoder, case: Case, batch: Batch, targets: Tensor, rank: Rank, emit: Emit
    ) -> Tensor:
        """One micro-batch; its loss, as this rank sees it."""
        stream = self.shifted(self.unpad(batch))
        mine = self.shard(case, stream, rank)
        nll_L = self.token_losses(model, case, mine, rank, emit)
        nll_L.retain_grad()
        emit("nll", nll_L, mine.tokens_L)
        loss = self.loss(case, batch, stream, nll_L, targets, rank)
        scale = self.scale(case, rank)
        self.backward(loss * scale)
        # How much each token's loss moves the gradients once they are reduced.
        emit("weight", gradient(nll_L) / scale / self.divisor(rank), mine.tokens_L)
        return loss.detach()

    def update(self, model: Decoder) -> None:
        """Plain SGD; by hand, because the first optimizer of a process takes torch a second."""
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(gradient(parameter), alpha=-LEARNING_RATE)
        model.zero_grad()

    def model(self, case: Case, rank: Rank) -> Decoder:
        return Decoder(case, TORCH_DTYPES[case.dtype], rank.device)

    def wrapped(self, model: Decoder, case: Case, rank: Rank) -> Decoder:
        """What training puts around the model, as far as the case asks for it."""
        if case.mixed:
            # Only held so: the decoder goes on computing in the dtype that it was made for.
            model.float()
        if case.compiled:
            compile_layers(model, rank.device)
        return WRAPPERS[case.wrapper].wrap(model, case, rank)

    def samples(self, case: Case, rank: Rank) -> list[Sample]:
        """This replica's rows; peers of one sequence have the same."""
        return my_samples(case, rank)

    def split(self, samples: list[Sample], micro_batches: int) -> list[list[Sample]]:
        return split(samples, micro_batches)

    def collate(self, case: Case, samples: list[Sample], rank: Rank) -> Batch:
        return collate(samples, case.pad_id, rank.device)

    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        """How many loss terms the step has, over all micro-batches and replicas."""
        mine = torch.stack([supervised(batch).sum() for batch in micro_batches]).sum()
        return summed(mine, rank.dp)

    def unpad(self, batch: Batch) -> Stream:
        return unpad(batch)

    def shifted(self, stream: Stream) -> Stream:
        """Labels: each token's successor, on the whole stream, before anything is cut."""
        return replace(stream, labels_T=shift(stream.labels_T))

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        """This rank's piece of the padded stream."""
        return shard(stream, case.pad_id, rank.sp.size(), rank.sp_index)

    def token_losses(
        self, model: Decoder, case: Case, mine: Shard, rank: Rank, emit: Emit
    ) -> Tensor:
        """The loss of each of this rank's tokens, padding included."""

        def tap(key: str, tensor: Tensor) -> None:
            emit(key, tensor, mine.tokens_L)

        segments = self.segments(mine, case)
        tap("ids", mine.ids_L)
        tap("positions", mine.positions_L)
        tap("labels", mine.labels_L)

        def losses(x_LD: Tensor, head: Head) -> Tensor:
            size = max(1, self.logits_at_once // case.vocab)
            if len(x_LD) > size:
                return self.losses_in_chunks(x_LD, head, mine.labels_L, size)
            logits_LV = head(x_LD)
            tap("logits", logits_LV)
            return self.cross_entropy(logits_LV, mine.labels_L)

        nll_L: Tensor = model(
            mine.ids_L,
            mine.positions_L,
            lambda q, k, v: self.attend(q, k, v, segments, case, rank),
            tap,
            losses,
        )
        return nll_L

    def losses_in_chunks(self, x_LD: Tensor, head: Head, labels_L: Tensor, size: int) -> Tensor:
        """Logits of a few tokens at a time, not kept but computed again in backward."""

        def losses(x_CD: Tensor, labels_C: Tensor) -> Tensor:
            return self.cross_entropy(head(x_CD), labels_C)

        chunks = zip(x_LD.split(size), labels_L.split(size), strict=True)
        return torch.cat([checkpoint(losses, *chunk, use_reentrant=False) for chunk in chunks])

    def segments(self, mine: Shard, case: Case) -> Segments:
        """Which tokens of the whole stream see each other."""
        return Segments.of(mine.positions_TP, case.window)

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,
        rank: Rank,
    ) -> Tensor:
        """Exchange tokens for heads, attend to the whole stream, exchange back -> out_LNH."""
        k_LKH, v_LKH = self.repeat(k_LKH, rank), self.repeat(v_LKH, rank)
        q_TMH, k_TCH, v_TCH = self.gather_tokens((q_LNH, k_LKH, v_LKH), rank)
        out_TMH = self.kernel(case)(q_TMH, k_TCH, v_TCH, segments)
        return self.scatter_tokens(out_TMH, rank)

    def repeat(self, x_LKH: Tensor, rank: Rank) -> Tensor:
        """Keys or values with as many heads as there are ranks, at least."""
        return repeat_for(rank.sp.size(), x_LKH)

    def gather_tokens(self, tensors: tuple[Tensor, ...], rank: Rank) -> tuple[Tensor, ...]:
        """Sequence layout to head layout: all tokens, this rank's heads."""
        return gather_tokens_together(tensors, rank.sp)

    def kernel(self, case: Case) -> Kernel:
        return KERNELS[case.kernel]

    def scatter_tokens(self, out_TMH: Tensor, rank: Rank) -> Tensor:
        """Head layout to sequence layout: this rank's tokens, all heads."""
        return scatter_tokens(out_TMH, rank.sp)

    def cross_entropy(self, logits_LV: Tensor, labels_L: Tensor) -> Tensor:
        return F.cross_entropy(at_least_fp32(logits_LV), labels_L, reduction="none")

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        """What this rank calls backward on, for one micro-batch."""
        raise NotImplementedError

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def divisor(self, rank: Rank) -> int:
        """What the sum over all ranks is divided by: their number for a mean, or 1."""
        raise NotImplementedError

    def scale(self, case: Case, rank: Rank) -> float:
        """What the loss is multiplied by: wrappers average over all ranks, in either dialect."""
        return 1 if case.wrapper == "none" else rank.world.size() / self.divisor(rank)

    def reported(self, total: Tensor, rank: Rank) -> Tensor:
        """The loss that a training log would show."""
        return summed(total, rank.world) / self.divisor(rank)

    def accumulation(
        self, model: Decoder, case: Case, rank: Rank, *, last: bool
    ) -> AbstractContextManager[None]:
        """Around a micro-batch: whether its gradients are reduced right away."""
        each = case.sync == "each"
        if each and case.wrapper == "none":
            return reduced_apart(model, lambda: self.reduce(model, rank))
        return WRAPPERS[case.wrapper].accumulation(model, each or last)

    def reduce(self, model: Decoder, rank: Rank) -> None:
        """Turn local gradients into what the optimizer sees."""
        sum_gradients(model, rank.world, divide_by=self.divisor(rank))


def supervised(batch: Batch) -> Tensor:
    """Columns 0 to S-2 whose next column is a real, supervised target of the same row."""
    return batch.loss_mask_BS[:, 1:] & batch.attended_BS[:, :-1]


def gradient(tensor: Tensor) -> Tensor:
    """The gradient; what backward never reached has a gradient of zeros."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def silent(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
    """Steps before the one that is judged emit nothing."""
