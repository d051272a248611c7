"""Candidates that are less exact than plain training, more than is allowed or just as much."""

from dataclasses import replace
from unittest.mock import patch

from torch import Tensor
from torch.nn import functional as F

from harness.candidates import Emit, Rank
from harness.candidates.own.native import LocalDialect
from harness.candidates.own.native.rows import Batch
from harness.case import Case
from harness.reference.decoder import Decoder


class Strays(LocalDialect):
    """A step with one error, a little larger than the budget of fp64."""

    name = "strays"

    def reduce(self, model: Decoder, rank: Rank) -> None:
        super().reduce(model, rank)
        gradient = dict(model.named_parameters())["layers.0.q"].grad
        assert gradient is not None
        gradient += 5e-12 * gradient.abs().max()


class Near(LocalDialect):
    """A step with one error of six tenths of the budget of fp64."""

    name = "near"

    def reduce(self, model: Decoder, rank: Rank) -> None:
        super().reduce(model, rank)
        gradient = dict(model.named_parameters())["layers.0.v"].grad
        assert gradient is not None
        gradient *= 1 + 6e-13


class Single(LocalDialect):
    """The output of the embedding is rounded to fp32, as if norms were computed in it."""

    name = "single"
    min_sp = 1

    def forward_backward(
        self, model: Decoder, case: Case, batch: Batch, targets: Tensor, rank: Rank, emit: Emit
    ) -> Tensor:
        plain = F.embedding

        def rounded(ids: Tensor, weight: Tensor) -> Tensor:
            return plain(ids, weight).float().to(weight.dtype)

        rounds = case.sp >= self.min_sp
        with patch.object(F, "embedding", rounded if rounds else plain):
            return super().forward_backward(model, case, batch, targets, rank, emit)


class SingleAmongPeers(Single):
    """As `Single`, but only where ranks share a sequence."""

    name = "single-among-peers"
    min_sp = 2


class SingleOverAll(Single):
    """As `Single`, and it needs all ranks that exist."""

    name, limits = "single-over-all", "ranks=all"


class Fuses(LocalDialect):
    """It always uses fused attention, as some libraries do, whatever kernel the case has."""

    name = "fuses"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        super().run(replace(case, kernel="sdpa"), rank, emit)


STRAYS, NEAR, FUSES = Strays(), Near(), Fuses()
SINGLE, SINGLE_AMONG_PEERS = Single(), SingleAmongPeers()
SINGLE_OVER_ALL = SingleOverAll()
