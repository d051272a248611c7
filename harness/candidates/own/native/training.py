"""What any training script has around a micro-batch, sequence-parallel or not.

That is: rows, micro-batches and the accumulation of their gradients, wrappers around the model,
cross entropy, and the optimizer.

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
from harness.candidates.own.native.usable import unsupported_reason
from harness.candidates.own.native.wrappers import WRAPPERS, compile_layers
from harness.candidates.protocol import Emit, Rank
from harness.case import LEARNING_RATE, Case
from harness.reference.decoder import Decoder, Head, Tap, at_least_fp32
from harness.reference.weights import TORCH_DTYPES


class Training(ABC):
    """The steps of a case; a subclass defines what happens in one micro-batch."""

    name: str
    # If there are more logits, they are computed in chunks, and again in backward.
    max_logits_at_once = 10 << 20

    def supports(self, case: Case) -> str | None:
        return unsupported_reason(case)

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        """Run all steps of a case; the last one is judged."""
        model = self.wrap_model(self.model(case, rank), case, rank)
        samples = self.samples(case, rank)
        check_peers(samples, rank)
        for _ in range(case.steps - 1):
            self.step(model, case, samples, rank, emit_nothing)
            self.update(model)
        self.step(model, case, samples, rank, emit)

    def model(self, case: Case, rank: Rank) -> Decoder:
        """Build the model on this rank, with the case's weights."""
        return Decoder(case, TORCH_DTYPES[case.dtype], rank.device)

    def wrap_model(self, model: Decoder, case: Case, rank: Rank) -> Decoder:
        """Compile and wrap the model as the case demands."""
        if case.mixed:
            # This changes only what holds the parameters; the decoder computes in its own dtype.
            model.float()
        if case.compiled:
            compile_layers(model, rank.device)
        return WRAPPERS[case.wrapper].wrap(model, case, rank)

    def samples(self, case: Case, rank: Rank) -> list[Sample]:
        """Return the rows of this rank's replica; peers of one sequence have the same."""
        rows = Rows(case)
        drawn = sampler(
            rows, case.dp, rank.dp_index, shuffle=False, drop_last=False, epoch=0, seed=case.seed
        )
        return [rows[index] for index in drawn]

    def step(
        self, model: Decoder, case: Case, samples: list[Sample], rank: Rank, emit: Emit
    ) -> None:
        """Run forward, backward and reduction on all micro-batches: all but the optimizer."""
        micro_batches = [
            self.collate(case, part, rank) for part in self.split(samples, case.micro_batches)
        ]
        targets = self.targets(micro_batches, rank)
        total = torch.zeros((), device=rank.device)
        for number, batch in enumerate(micro_batches, 1):
            with self.gradient_sync(model, case, rank, last=number == len(micro_batches)):
                total = total + self.forward_backward(model, case, batch, targets, rank, emit)

        emit("loss", self.reported_loss(total, rank))
        if case.wrapper == "none" and case.sync == "last":
            self.reduce(model, rank)
        wrapper = WRAPPERS[case.wrapper]
        for name, parameter in wrapper.unwrap(model).named_parameters():
            emit(f"grad.{name}", wrapper.whole_gradient(gradient_or_zeros(parameter)))

    def split(self, samples: list[Sample], micro_batches: int) -> list[list[Sample]]:
        """Split the rows into consecutive micro-batches, the larger ones first."""
        share, larger = divmod(len(samples), micro_batches)
        pieces, at = [], 0
        for i in range(micro_batches):
            size = share + (i < larger)
            pieces.append(samples[at : at + size])
            at += size
        return pieces

    def collate(self, case: Case, samples: list[Sample], rank: Rank) -> Batch:
        """Pad the rows to the longest of them."""
        return collate(samples, case.pad_id, rank.device)

    @abstractmethod
    def targets(self, micro_batches: list[Batch], rank: Rank) -> Tensor:
        """Count the loss terms of the step, over all micro-batches and replicas."""

    def gradient_sync(
        self, model: Decoder, case: Case, rank: Rank, *, last: bool
    ) -> AbstractContextManager[None]:
        """Return a context for a micro-batch, which reduces its gradients at once or not."""
        after_each = case.sync == "each"
        if after_each and case.wrapper == "none":
            return reduce_separately(model, lambda: self.reduce(model, rank))
        return WRAPPERS[case.wrapper].gradient_sync(model, after_each or last)

    @abstractmethod
    def forward_backward(
        self, model: Decoder, case: Case, batch: Batch, targets: Tensor, rank: Rank, emit: Emit
    ) -> Tensor:
        """Train on one micro-batch -> its loss on this rank; the model holds the gradients."""

    def losses_from_hidden(
        self, x_LD: Tensor, head: Head, labels_L: Tensor, case: Case, tap: Tap
    ) -> Tensor:
        """Compute the loss of each token from the last hidden state -> nll_L."""
        size = max(1, self.max_logits_at_once // case.vocab)
        if len(x_LD) <= size:
            logits_LV = head(x_LD)
            tap("logits", logits_LV)
            return self.cross_entropy(logits_LV, labels_L)

        def in_chunk(x_XD: Tensor, labels_X: Tensor) -> Tensor:
            return self.cross_entropy(head(x_XD), labels_X)

        # Checkpointing computes the logits again in backward instead of keeping them.
        chunks = zip(x_LD.split(size), labels_L.split(size), strict=True)
        return torch.cat([checkpoint(in_chunk, *chunk, use_reentrant=False) for chunk in chunks])

    def cross_entropy(self, logits_LV: Tensor, labels_L: Tensor) -> Tensor:
        """Compute the loss of each token with its label, never in half precision."""
        return F.cross_entropy(at_least_fp32(logits_LV), labels_L, reduction="none")

    def loss_scale(self, case: Case, rank: Rank) -> float:
        """Return the factor of the loss: wrappers average over all ranks in either dialect."""
        return 1 if case.wrapper == "none" else rank.world.size() / self.divisor(rank)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of this loss to those that the model holds."""
        loss.backward()

    @abstractmethod
    def divisor(self, rank: Rank) -> int:
        """Return what sums over all ranks are divided by: their number for a mean, or 1."""

    @abstractmethod
    def reduce(self, model: Decoder, rank: Rank) -> None:
        """Replace this rank's gradients by those that the optimizer sees."""

    @abstractmethod
    def reported_loss(self, total: Tensor, rank: Rank) -> Tensor:
        """Return the loss that a training log would show."""

    def update(self, model: Decoder) -> None:
        """Take one step of plain SGD; a torch optimizer would cost each process a second."""
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(gradient_or_zeros(parameter), alpha=-LEARNING_RATE)
        model.zero_grad()


@contextmanager
def reduce_separately(model: nn.Module, reduce: Callable[[], None]) -> Iterator[None]:
    """Reduce the gradients made inside without earlier ones, which are reduced already."""
    earlier = [(p, p.grad) for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    yield
    reduce()
    for parameter, before in earlier:
        assert parameter.grad is not None
        parameter.grad += before


def gradient_or_zeros(tensor: Tensor) -> Tensor:
    """Return the gradient, or zeros if backward did not reach the tensor."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def emit_nothing(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
    """Ignore what a step before the judged one emits."""


def sum_over(value: Tensor, group: ProcessGroup) -> Tensor:
    """Sum a scalar over the group, outside the autograd graph; for counts and logged losses.

    The summands are added in rank order, so that all ranks get the same bits. For one number,
    gathering is also several times faster than the ring of an all-reduce.
    """
    parts = [torch.empty_like(value) for _ in range(group.size())]
    dist.all_gather(parts, value.detach(), group=group)
    return torch.stack(parts).sum()
