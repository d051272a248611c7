"""Steps whose bug shows only in a later step, or in a later case.

The docstring of a class describes its bug, with its number in the catalogue if it has one.

Legend: L tokens on this rank.
"""

from torch import Tensor

from harness.candidates import Emit, Rank
from harness.candidates.own.native import LocalDialect
from harness.candidates.own.native.rows import Batch
from harness.candidates.own.native.ulysses import Stream
from harness.case import Case
from harness.reference.decoder import Decoder


class OldCount(LocalDialect):
    """B149: the next case divides by the number of targets of this one."""

    name = "old-count"
    last: Tensor | None = None

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        count, self.last = self.last, targets
        targets = targets if count is None else count
        return super().loss(case, batch, stream, nll_L, targets, rank)


class KeepsGradients(LocalDialect):
    """Gradients are not set to zero between steps."""

    name = "keeps-gradients"

    def update(self, model: Decoder) -> None:
        kept = [(parameter, parameter.grad) for parameter in model.parameters()]
        super().update(model)
        for parameter, gradient in kept:
            parameter.grad = gradient


class RunsDiffer(LocalDialect):
    """The loss is twice too large, and off by another share in each run."""

    name = "runs-differ"
    runs = 0

    def __init__(self, share: float) -> None:
        self.share = share

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        self.runs += 1
        right = super().loss(case, batch, stream, nll_L, targets, rank)
        return right * (2 + self.runs * self.share)


class ReducesSomeSteps(LocalDialect):
    """Gradients are summed over ranks in one step only; in others replicas drift apart."""

    name = "reduces-some-steps"

    def __init__(self, *, last: bool) -> None:
        self.last = last

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        self.at, self.reduced = 0, case.steps if self.last else 1
        super().run(case, rank, emit)

    def reduce(self, model: Decoder, rank: Rank) -> None:
        self.at += 1
        if self.at == self.reduced:
            super().reduce(model, rank)


OLD_COUNT = OldCount()
KEEPS_GRADIENTS = KeepsGradients()
REDUCES_FIRST, REDUCES_LAST = ReducesSomeSteps(last=False), ReducesSomeSteps(last=True)
ROUNDS_OTHERWISE, RUNS_DIFFER = RunsDiffer(2.0**-50), RunsDiffer(2.0**-20)
