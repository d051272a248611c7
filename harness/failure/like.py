"""The bank of mutants as a dictionary: which known bugs give the same wrong numbers."""

import time
from collections.abc import Iterator
from itertools import islice

import numpy as np

from harness.candidates.bank import Mutant
from harness.candidates.own.mutants import BANK
from harness.candidates.required import only_required
from harness.compare import Comparison, Verdict, alike
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.experiments import neighbours
from harness.diagnosis.readout import small
from harness.judge.diagnosed import Asked
from harness.ranks.pool import RankPool

LIKE_SECONDS = 60.0
# Cases near the failing one, and on how many it has to go wrong: one alone fits many.
NEAR, ENOUGH = 9, 2
# These give no numbers.
WITHOUT_NUMBERS = ("crashed", "collective-mismatch")


def known_alike(failure: Comparison, pool: RankPool) -> tuple[list[Mutant], str]:
    """Mutants, other than the candidate itself, that give its numbers; and on how many cases."""
    until = time.monotonic() + LIKE_SECONDS
    ask = Asked(failure.candidate, pool, until)
    cases = [failure.case, *islice(neighbours(failure.case, {}), NEAR)]
    seen = [evidence for evidence in map(ask, cases) if evidence is not None]
    wrong = sum(each.comparison.verdict is Verdict.DIVERGED for each in seen)
    if wrong < ENOUGH:
        return [], f"on {wrong} of {len(seen)} cases it goes wrong, which is too few to compare"
    found = [each for each in _others(failure.candidate) if _gives(each, seen, pool, until)]
    return found, f"on {len(seen)} cases, of which {wrong} go wrong"


def _others(candidate: str) -> Iterator[Mutant]:
    for mutant in BANK.values():
        own = mutant.candidate.name
        if candidate not in (own, only_required(own)) and mutant.anomaly not in WITHOUT_NUMBERS:
            yield mutant


def _gives(mutant: Mutant, seen: list[Evidence], pool: RankPool, until: float) -> bool:
    ask = Asked(mutant.candidate.name, pool, until)
    return all(_same(evidence, ask(evidence.case)) for evidence in seen)


def _same(one: Evidence, other: Evidence | None) -> bool:
    """Whether all that both must show is the same to rounding."""
    if other is None or one.comparison.misfits or other.comparison.misfits:
        return False
    at, kept, given = one.targets, one.of_required.got, other.of_required.got
    keys = set(kept) - {"nll"}
    if keys != set(given) - {"nll"} or not one.alike(one.losses_n[at], other.losses_n[at]).all():
        return False
    # A gradient that is zero but for rounding has no size of its own.
    least = small(one.case.dtype) * max(float(np.abs(kept[key].values).max()) for key in keys)
    return all(
        alike(kept[key].values, given[key].values, one.case.dtype, least).all() for key in keys
    )
