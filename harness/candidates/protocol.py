"""The protocol of a candidate: a name and two methods."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from harness.case import Case
from harness.rank import Emit, Rank

__all__ = ["STOOD_IN", "Candidate", "Emit", "PlainTraining", "Rank"]

# Packages for which this process runs a stand-in in plain torch; every result lists them.
STOOD_IN: set[str] = set()


@runtime_checkable
class Candidate(Protocol):
    """An implementation of one sequence-parallel training step.

    `run` builds the model from the case's seed, takes the step and emits `nll` (the losses of
    this rank's tokens, with their numbers), `loss`, and `grad.<parameter>` as its optimizer
    would see it. It never compares, catches or prints.

    It may have `limits`, a text such as "loss=token-mean window=none", which lists the values that
    it supports of single fields. Then the harness draws no other cases for it.
    """

    name: str

    def supports(self, case: Case) -> str | None:
        """Return the reason why this case cannot be run, or None if it can."""

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        """Take one step on one rank."""


class PlainTraining(Protocol):
    """A recipe, or a step with one: the reference of candidates that need no model of ours."""

    # What can be wrong with a step: each is a variant of plain training that `run_plain` takes.
    hypotheses: Mapping[str, object]

    def run_plain(
        self, case: Case, rank: Rank, emit: Emit, variant: str, *, exactly: bool
    ) -> None:
        """Train on all rows on one rank; in fp64 throughout if `exactly`."""
