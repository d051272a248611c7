"""The native step with a fault that takes time to show: another step, or another case.

Each docstring is the bug in a sentence, with its number in the catalogue where it has one.

Legend: T tokens of the stream, M query heads on this rank, C kv heads on this rank, H head dim.
"""

from torch import Tensor
from torch.nn import functional as F

from harness.candidates import Emit, Rank
from harness.candidates.native import LocalDialect
from harness.candidates.native.attention import Kernel, Segments, eager
from harness.candidates.native.packing import Batch, Stream
from harness.case import Case
from harness.reference.decoder import Decoder


class OldCount(LocalDialect):
    """B149: the count of targets is kept for the next case, which divides by it."""

    name = "old-count"
    last: Tensor | None = None

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        count, self.last = self.last, targets
        targets = targets if count is None else count
        return super().loss(case, batch, stream, nll_L, targets, rank)


class FirstHeads(LocalDialect):
    """B48: how many query heads share a kv head is remembered from the first model."""

    name = "first-heads"
    queries: int | None = None

    def kernel(self, case: Case) -> Kernel:
        self.queries = self.queries or case.heads // case.kv_heads

        def grouped(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
            k_TMH, v_TMH = (
                x.repeat_interleave(self.queries or 1, 1)[:, : q_TMH.shape[1]]
                for x in (k_TCH, v_TCH)
            )
            return eager(q_TMH, k_TMH, v_TMH, segments)

        return grouped


class Dropout(LocalDialect):
    """B138: dropout draws from a generator that no one seeds."""

    name = "dropout"

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, segments: Segments, case: Case, rank: Rank
    ) -> Tensor:
        return F.dropout(super().attend(q, k, v, segments, case, rank), 0.1)


class KeepsGradients(LocalDialect):
    """Gradients are not set to zero between steps."""

    name = "keeps-gradients"

    def update(self, model: Decoder) -> None:
        kept = [(parameter, parameter.grad) for parameter in model.parameters()]
        super().update(model)
        for parameter, gradient in kept:
            parameter.grad = gradient


class ReducesSomeSteps(LocalDialect):
    """Gradients are summed over ranks in one step only, and replicas drift apart in others."""

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


OLD_COUNT, FIRST_HEADS, DROPOUT = OldCount(), FirstHeads(), Dropout()
KEEPS_GRADIENTS = KeepsGradients()
REDUCES_FIRST, REDUCES_LAST = ReducesSomeSteps(last=False), ReducesSomeSteps(last=True)
