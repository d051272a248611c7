"""Candidates that are not as exact as plain training: more than they may, or as they may."""

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
    """Right but for an error a little larger than fp64 is allowed."""

    name = "strays"

    def reduce(self, model: Decoder, rank: Rank) -> None:
        super().reduce(model, rank)
        gradient = dict(model.named_parameters())["layers.0.q"].grad
        assert gradient is not None
        gradient += 5e-12 * gradient.abs().max()


class Single(LocalDialect):
    """What leaves the embedding is rounded to fp32, as where norms are computed in it."""

    name = "single"
    least = 1

    def forward_backward(
        self, model: Decoder, case: Case, batch: Batch, targets: Tensor, rank: Rank, emit: Emit
    ) -> Tensor:
        plain = F.embedding

        def rounded(ids: Tensor, weight: Tensor) -> Tensor:
            return plain(ids, weight).float().to(weight.dtype)

        rounds = case.sp >= self.least
        with patch.object(F, "embedding", rounded if rounds else plain):
            return super().forward_backward(model, case, batch, targets, rank, emit)


class SingleAmongPeers(Single):
    """The same, and only where ranks share a sequence."""

    name = "single-among-peers"
    least = 2


class SingleOverAll(Single):
    """The same, over all ranks that there are."""

    name, limits = "single-over-all", "ranks=all"


class Fuses(LocalDialect):
    """As a library does that has fused attention, whatever a case has."""

    name = "fuses"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        super().run(replace(case, kernel="sdpa"), rank, emit)


STRAYS, FUSES = Strays(), Fuses()
SINGLE, SINGLE_AMONG_PEERS = Single(), SingleAmongPeers()
SINGLE_OVER_ALL = SingleOverAll()
