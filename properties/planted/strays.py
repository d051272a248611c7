"""Candidates that are not as exact as plain training: one more than it may, one as it may."""

from dataclasses import replace

from harness.candidates import Emit, Rank
from harness.candidates.own.native import LocalDialect
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


class Fuses(LocalDialect):
    """As a library does that has fused attention, whatever a case has."""

    name = "fuses"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        super().run(replace(case, kernel="sdpa"), rank, emit)


STRAYS, FUSES = Strays(), Fuses()
