"""The bank of mutants as a dictionary: which known bugs give the same wrong numbers."""

import time
from collections.abc import Iterator
from itertools import islice

from harness.against import ITSELF
from harness.candidates import locate
from harness.candidates.bank import Mutant
from harness.candidates.own.mutants import BANK
from harness.candidates.required import only_required
from harness.compare import Comparison, Verdict
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.experiments import neighbours
from harness.diagnosis.readout import unlike
from harness.judge import Session
from harness.judge.diagnosed import Asked

LIKE_SECONDS = 60.0
# Cases near the failing one, and on how many it has to go wrong: one alone fits many.
NEAR, ENOUGH = 9, 2
# These give no numbers.
WITHOUT_NUMBERS = ("crashed", "collective-mismatch")


def known_alike(failure: Comparison, session: Session) -> tuple[list[Mutant], str]:
    """Mutants, other than the candidate itself, that give its numbers; and what was compared."""
    if failure.against == ITSELF:
        return [], "known bugs are of our own model, and the step is compared with itself"
    until = time.monotonic() + LIKE_SECONDS
    ask = Asked(locate(failure.candidate), session, until)
    cases = [failure.case, *islice(neighbours(failure.case, {}), NEAR)]
    seen = [evidence for evidence in map(ask, cases) if evidence is not None]
    wrong = sum(each.comparison.verdict is Verdict.DIVERGED for each in seen)
    if wrong < ENOUGH:
        return [], f"on {wrong} of {len(seen)} cases it goes wrong, which is too few to compare"
    others, compared = list(_others(failure.candidate)), 0
    found = []
    for mutant in others:
        gives = _gives(mutant, seen, session, until)
        if time.monotonic() > until:
            # What it said last may be no answer.
            break
        compared += 1
        found += [mutant] if gives else []
    where = f"on {len(seen)} cases, of which {wrong} go wrong"
    late = "" if compared == len(others) else "; time ran out before all were compared"
    return found, f"{where}; {compared} of {len(others)} known bugs with numbers compared{late}"


def _others(candidate: str) -> Iterator[Mutant]:
    for mutant in BANK.values():
        own = mutant.candidate.name
        if candidate not in (own, only_required(own)) and mutant.anomaly not in WITHOUT_NUMBERS:
            yield mutant


def _gives(mutant: Mutant, seen: list[Evidence], session: Session, until: float) -> bool:
    ask = Asked(locate(mutant.candidate.name), session, until)
    return all(_same(evidence, ask(evidence.case)) for evidence in seen)


def _same(one: Evidence, other: Evidence | None) -> bool:
    """Whether all that both must show is the same to rounding."""
    if other is None or one.comparison.misfits or other.comparison.misfits:
        return False
    at, kept, given = one.targets, one.of_required.got, other.of_required.got
    keys = set(kept) - {"nll"}
    if keys != set(given) - {"nll"} or not one.alike(one.losses_n[at], other.losses_n[at]).all():
        return False
    of_kept = {key: kept[key].values for key in keys}
    return not unlike(of_kept, given, one.case.dtype)
