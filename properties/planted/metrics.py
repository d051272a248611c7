"""Steps with right losses and gradients that also emit other tensors, some of them wrong."""

from collections.abc import Callable

import torch
from torch import Tensor

from harness.candidates import Emit, Rank
from harness.candidates.own.native import LocalDialect
from harness.case import Case


class Metrics(LocalDialect):
    """A correct step that also emits metrics."""

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        super().run(case, rank, emit)
        self.emit_metrics(case, rank, emit)

    def emit_metrics(self, case: Case, rank: Rank, emit: Emit) -> None:
        """Emit a number of all ranks, a number of one rank, and numbers of tokens."""
        emit("metric.kl", torch.tensor(0.25))
        if rank.index == 1:
            emit("metric.of-rank-1", torch.tensor(1.0))
        # Each token's number comes from one rank only.
        numbers = torch.arange(case.tokens)[rank.index :: case.ranks]
        emit("entropy", numbers.double(), numbers)


class OfItsRank(Metrics):
    """A metric that should be the same on all ranks differs on each."""

    def emit_metrics(self, case: Case, rank: Rank, emit: Emit) -> None:
        emit("metric.kl", self.kl(case, rank))

    def kl(self, case: Case, rank: Rank) -> Tensor:  # noqa: ARG002 - overrides use it
        return torch.tensor(float(rank.index))


class OfSp(OfItsRank):
    """All ranks agree on a number, which is another one at sp 1."""

    def kl(self, case: Case, rank: Rank) -> Tensor:  # noqa: ARG002 - the same on every rank
        return torch.tensor(float(case.sp))


class OfTheLastRank(Metrics):
    """The last rank emits the number of its own tokens."""

    def emit_metrics(self, case: Case, rank: Rank, emit: Emit) -> None:
        if rank.index == case.ranks - 1:
            emit("metric.tokens", torch.tensor(float(case.tokens // case.sp)))


class AtSp1Alone(Metrics):
    """The metric is missing where ranks share a sequence."""

    def emit_metrics(self, case: Case, rank: Rank, emit: Emit) -> None:  # noqa: ARG002 - unused
        if case.sp == 1:
            emit("metric.kl", torch.tensor(0.25))


class OfSomeTokens(Metrics):
    """A correct step: only every second token has the metric, and every rank emits them all."""

    def emit_metrics(self, case: Case, rank: Rank, emit: Emit) -> None:  # noqa: ARG002 - unused
        numbers = torch.arange(0, case.tokens, 2)
        emit("metric.of-some", numbers.double(), numbers)


class Besides(LocalDialect):
    """It emits one more tensor, `key`, which a function computes from the tensor `by`."""

    def __init__(self, key: str, wrong: Callable[[Tensor], Tensor], by: str = "nll") -> None:
        self.key, self.wrong, self.by = key, wrong, by

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        def emit_more(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            if key == self.by:
                emit(self.key, self.wrong(tensor.detach()), tokens)
            if key != self.key:
                emit(key, tensor, tokens)

        super().run(case, rank, emit_more)


class BesideTheLoss(LocalDialect):
    """A term that affects only norms is averaged over ranks; it is emitted unless `quiet`."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        def emit_with_term(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            emit(key, tensor + 1 / case.sp if key.endswith("norm") else tensor, tokens)

        super().run(case, rank, emit_with_term)
        if not self.quiet:
            emit("metric.balance", torch.tensor(1 / case.sp))


def rolled(values: Tensor) -> Tensor:
    """Shift the values of a shard, as after the cut."""
    return values.roll(-1, 0)


METRICS, OF_ITS_RANK, OF_SP = Metrics(), OfItsRank(), OfSp()
OF_THE_LAST_RANK, AT_SP_1_ALONE, OF_SOME_TOKENS = OfTheLastRank(), AtSp1Alone(), OfSomeTokens()
LOGP, ROLLED = Besides("metric.logp", Tensor.neg), Besides("metric.logp", rolled)
WIDE = Besides("metric.wide", lambda nll: rolled(nll)[:, None].expand(-1, 2))
ROLLED_BACK = Besides("metric.logp", lambda nll: nll.roll(1, 0))
SHIFTED_TWICE = Besides("metric.logp", lambda nll: nll.roll(-2, 0))
BALANCE, QUIET_BALANCE = BesideTheLoss(quiet=False), BesideTheLoss(quiet=True)
LABELS, IDS, WEIGHT = (Besides(key, rolled, key) for key in ("labels", "ids", "weight"))
