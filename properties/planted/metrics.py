"""Right steps that emit what nothing is compared with."""

import torch
from torch import Tensor

from harness.candidates import Emit, Rank
from harness.candidates.own.native import LocalDialect
from harness.case import Case


class Metrics(LocalDialect):
    """A right step that logs something besides."""

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        super().run(case, rank, emit)
        self.log(case, rank, emit)

    def log(self, case: Case, rank: Rank, emit: Emit) -> None:
        """The same on every rank; of one rank alone; and of tokens."""
        emit("metric.kl", torch.tensor(0.25))
        if rank.index == 1:
            emit("metric.of-rank-1", torch.tensor(1.0))
        # Rows of tokens, which no two ranks have in common.
        numbers = torch.arange(case.tokens)[rank.index :: case.ranks]
        emit("entropy", numbers.double(), numbers)


class OfItsRank(Metrics):
    """What should be one number is another on each rank."""

    def log(self, case: Case, rank: Rank, emit: Emit) -> None:
        emit("metric.kl", self.kl(case, rank))

    def kl(self, case: Case, rank: Rank) -> Tensor:  # noqa: ARG002 - of others
        return torch.tensor(float(rank.index))


class OfSp(OfItsRank):
    """All ranks agree, on another number than at sp 1."""

    def kl(self, case: Case, rank: Rank) -> Tensor:  # noqa: ARG002 - as above
        return torch.tensor(float(case.sp))


METRICS, OF_ITS_RANK, OF_SP = Metrics(), OfItsRank(), OfSp()
