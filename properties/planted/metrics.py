"""Steps of which losses and gradients are right, and that emit something besides."""

from collections.abc import Callable

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


class OfTheLastRank(Metrics):
    """The last rank logs what it knows of its own tokens."""

    def log(self, case: Case, rank: Rank, emit: Emit) -> None:
        if rank.index == case.ranks - 1:
            emit("metric.tokens", torch.tensor(float(case.tokens // case.sp)))


class AtSp1Alone(Metrics):
    """Where a sequence is shared, the metric is forgotten."""

    def log(self, case: Case, rank: Rank, emit: Emit) -> None:  # noqa: ARG002 - of others
        if case.sp == 1:
            emit("metric.kl", torch.tensor(0.25))


class OfSomeTokens(Metrics):
    """It is right: only every second token has the metric, and every rank has it of all."""

    def log(self, case: Case, rank: Rank, emit: Emit) -> None:  # noqa: ARG002 - of others
        numbers = torch.arange(0, case.tokens, 2)
        emit("metric.of-some", numbers.double(), numbers)


class Besides(LocalDialect):
    """What it says besides of a key is wrong, or has so many numbers for each token."""

    def __init__(self, key: str, wrong: Callable[[Tensor], Tensor], by: str = "nll") -> None:
        self.key, self.wrong, self.by = key, wrong, by

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        def more(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            if key == self.by:
                emit(self.key, self.wrong(tensor.detach()), tokens)
            if key != self.key:
                emit(key, tensor, tokens)

        super().run(case, rank, more)


class BesideTheLoss(LocalDialect):
    """A term that reaches norms alone is averaged over ranks, and emitted unless it is `quiet`."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        def more(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            emit(key, tensor + 1 / case.sp if key.endswith("norm") else tensor, tokens)

        super().run(case, rank, more)
        if not self.quiet:
            emit("metric.balance", torch.tensor(1 / case.sp))


def rolled(values: Tensor) -> Tensor:
    """Shifted after the cut."""
    return values.roll(-1, 0)


METRICS, OF_ITS_RANK, OF_SP = Metrics(), OfItsRank(), OfSp()
OF_THE_LAST_RANK, AT_SP_1_ALONE, OF_SOME_TOKENS = OfTheLastRank(), AtSp1Alone(), OfSomeTokens()
LOGP, ROLLED = Besides("metric.logp", Tensor.neg), Besides("metric.logp", rolled)
WIDE = Besides("metric.wide", lambda nll: rolled(nll)[:, None].expand(-1, 2))
ROLLED_BACK = Besides("metric.logp", lambda nll: nll.roll(1, 0))
SHIFTED_TWICE = Besides("metric.logp", lambda nll: nll.roll(-2, 0))
BALANCE, QUIET_BALANCE = BesideTheLoss(quiet=False), BesideTheLoss(quiet=True)
LABELS, IDS, WEIGHT = (Besides(key, rolled, key) for key in ("labels", "ids", "weight"))
