"""What any training script has, sequence-parallel or not.

Rows, micro-batches and their accumulation, wrappers around the model, cross entropy, optimizer.

Legend: L tokens on this rank, D hidden, V vocabulary, X tokens of one chunk.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import ProcessGroup
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from harness.candidates.own.native.rows import Batch, Rows, Sample, check_peers, collate, sampler
from harness.candidates.own.native.usable import unsupported
from harness.candidates.own.native.wrappers import WRAPPERS, compile_layers
from harness.candidates.protocol import Emit, Rank
from harness.case import LEARNING_RATE, Case
from harness.reference.decoder import Decoder, Head, Tap, at_least_fp32
from harness.reference.weights import TORCH_DTYPES


class Training(ABC):
    """Several steps of it; whoever derives from it says what is done with one micro-batch."""

    name: str
    # More than that many logits are computed, and forgotten, a few tokens at a time.
    logits_at_once = 10 << 20

    def supports(self, case: Case) -> str | None:
        return unsupported(case)

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        """All steps of a case; the last is the one that is judged."""
        model = self.wrapped(self.model(case, rank), case, rank)
        samples = self.samples(case, rank)
        check_peers(samples, rank)
        for _ in range(case.steps - 1):
            self.step(model, case, samples, rank, silent)
            self.update(model)
        self.step(model, case, samples, rank, emit)

    def model(self, case: Case, rank: Rank) -> Decoder:
        """The model on this rank, with the case's weights."""
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
        """The rows of this rank's replica; peers of one sequence have the same."""
        rows = Rows(case)
        drawn = sampler(
            rows, case.dp, rank.dp_index, shuffle=False, drop_last=False, epoch=0, seed=case.seed
        )
        return [rows[index] for index in drawn]

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

    def split(self, samples: list[Sample], micro_batches: int) -> list[list[Sample]]:
        """Consecutive micro-batches, the larger ones first."""
        share, larger = divmod(len(samples), micro_batches)
        pieces, at = [], 0
        for i in range(micro_batches):
            size = share + (i < larger)
            pieces.append(samples[at : at + size])
            at += size
        return pieces

    def collate(self, case: Case, samples: list[Sample], rank: Rank) -> Batch:
        """Rows padded to the longest of them."""
        return collate(samples, case.pad_id, rank.device)

    @abstractmethod
    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        """How many loss terms the step has, over all micro-batches and replicas."""

    def accumulation(
        self, model: Decoder, case: Case, rank: Rank, *, last: bool
    ) -> AbstractContextManager[None]:
        """Around a micro-batch: whether its gradients are reduced right away."""
        each = case.sync == "each"
        if each and case.wrapper == "none":
            return reduced_apart(model, lambda: self.reduce(model, rank))
        return WRAPPERS[case.wrapper].accumulation(model, each or last)

    @abstractmethod
    def forward_backward(
        self, model: Decoder, case: Case, batch: Batch, targets: Tensor, rank: Rank, emit: Emit
    ) -> Tensor:
        """One micro-batch; leaves its gradients in the model -> loss, as this rank sees it."""

    def losses(self, x_LD: Tensor, head: Head, labels_L: Tensor, case: Case, tap: Tap) -> Tensor:
        """From the last hidden state the loss of each token -> nll_L."""
        size = max(1, self.logits_at_once // case.vocab)
        if len(x_LD) <= size:
            logits_LV = head(x_LD)
            tap("logits", logits_LV)
            return self.cross_entropy(logits_LV, labels_L)

        def in_chunk(x_XD: Tensor, labels_X: Tensor) -> Tensor:
            return self.cross_entropy(head(x_XD), labels_X)

        # Logits are not kept but computed again in backward.
        chunks = zip(x_LD.split(size), labels_L.split(size), strict=True)
        return torch.cat([checkpoint(in_chunk, *chunk, use_reentrant=False) for chunk in chunks])

    def cross_entropy(self, logits_LV: Tensor, labels_L: Tensor) -> Tensor:
        """The loss of each token with its label, never in half precision."""
        return F.cross_entropy(at_least_fp32(logits_LV), labels_L, reduction="none")

    def scale(self, case: Case, rank: Rank) -> float:
        """What the loss is multiplied by: wrappers average over all ranks, in either dialect."""
        return 1 if case.wrapper == "none" else rank.world.size() / self.divisor(rank)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of this loss to those in the model."""
        loss.backward()

    @abstractmethod
    def divisor(self, rank: Rank) -> int:
        """What sums over all ranks are divided by: their number for a mean, or 1."""

    @abstractmethod
    def reduce(self, model: Decoder, rank: Rank) -> None:
        """Turn this rank's gradients into what the optimizer sees."""

    @abstractmethod
    def reported(self, total: Tensor, rank: Rank) -> Tensor:
        """The loss that a training log would show."""

    def update(self, model: Decoder) -> None:
        """Plain SGD; by hand, because the first optimizer of a process takes torch a second."""
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(gradient(parameter), alpha=-LEARNING_RATE)
        model.zero_grad()


@contextmanager
def reduced_apart(model: nn.Module, reduce: Callable[[], None]) -> Iterator[None]:
    """Gradients made inside are reduced without earlier ones, which are reduced already."""
    earlier = [(p, p.grad) for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    yield
    reduce()
    for parameter, before in earlier:
        assert parameter.grad is not None
        parameter.grad += before


def gradient(tensor: Tensor) -> Tensor:
    """The gradient; what backward never reached has a gradient of zeros."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def silent(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
    """Steps before the one that is judged emit nothing."""


def summed(value: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of a scalar over the group, in rank order and so the same bits everywhere.

    Outside the graph: what a log shows, or a count. For one number, gathering is also several
    times faster than the ring of an all-reduce.
    """
    parts = [torch.empty_like(value) for _ in range(group.size())]
    dist.all_gather(parts, value.detach(), group=group)
    return torch.stack(parts).sum()
