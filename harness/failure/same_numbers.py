"""The bank of mutants as a dictionary: which known bugs give the same wrong numbers."""

import time
from collections.abc import Iterator
from itertools import islice

from harness.against import ITSELF, PLAIN, reference_name
from harness.candidates import locate
from harness.candidates.bank import Mutant
from harness.candidates.own.mutants import NATIVE
from harness.candidates.required import only_required
from harness.compare import Comparison, Verdict
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.experiments import neighbours
from harness.diagnosis.readout import differing_gradients
from harness.judge import Session
from harness.judge.diagnosed import Asked

SECONDS = 60.0
NEIGHBOURS = 9
# Many bugs give the same numbers on a single case, so a candidate must be wrong on more.
FEWEST_WRONG_CASES = 2
# A mutant with one of these anomalies ends in a fault, so it has no numbers to compare.
ANOMALIES_WITHOUT_NUMBERS = ("crashed", "collective-mismatch")


def find_same_numbers(failure: Comparison, session: Session) -> tuple[list[Mutant], str]:
    """Return the mutants that give the candidate's numbers, and a sentence on what was compared.

    They are compared on the failing case and on cases like it. The candidate itself is left out.
    """
    if failure.against != PLAIN:
        is_own = failure.against == ITSELF
        reference = "itself" if is_own else reference_name(failure.case, failure.against)
        return [], f"known bugs are of our own model, and the step is compared with {reference}"
    until = time.monotonic() + SECONDS
    ask = Asked(locate(failure.candidate), session, until)
    cases = [failure.case, *islice(neighbours(failure.case, {}), NEIGHBOURS)]
    seen = [evidence for evidence in map(ask, cases) if evidence is not None]
    wrong = sum(evidence.comparison.verdict is Verdict.DIVERGED for evidence in seen)
    if wrong < FEWEST_WRONG_CASES:
        return [], f"on {wrong} of {len(seen)} cases it goes wrong, which is too few to compare"
    mutants, compared = list(_comparable_mutants(failure.candidate)), 0
    found = []
    for mutant in mutants:
        is_alike = _gives_same_numbers(mutant, seen, session, until)
        if time.monotonic() > until:
            # The time may have run out in the middle of this mutant, so its result does not count.
            break
        compared += 1
        found += [mutant] if is_alike else []
    where = f"on {len(seen)} cases, of which {wrong} go wrong"
    late = "" if compared == len(mutants) else "; time ran out before all were compared"
    return found, f"{where}; {compared} of {len(mutants)} known bugs with numbers compared{late}"


def _comparable_mutants(candidate: str) -> Iterator[Mutant]:
    """Yield all mutants with numbers, except for the candidate itself."""
    for mutant in NATIVE.values():
        own = mutant.candidate.name
        is_itself = candidate in (own, only_required(own))
        if not is_itself and mutant.anomaly not in ANOMALIES_WITHOUT_NUMBERS:
            yield mutant


def _gives_same_numbers(
    mutant: Mutant, seen: list[Evidence], session: Session, until: float
) -> bool:
    ask = Asked(locate(mutant.candidate.name), session, until)
    return all(_is_same(evidence, ask(evidence.case)) for evidence in seen)


def _is_same(one: Evidence, other: Evidence | None) -> bool:
    """Return whether both have the same keys, losses and gradients, to rounding."""
    if other is None or one.comparison.measured.misfits or other.comparison.measured.misfits:
        return False
    targets, kept, given = one.targets, one.of_required.got, other.of_required.got
    keys = set(kept) - {"nll"}
    if keys != set(given) - {"nll"}:
        return False
    if not one.alike(one.losses_n[targets], other.losses_n[targets]).all():
        return False
    kept_values = {key: kept[key].values for key in keys}
    return not differing_gradients(kept_values, given, one.case.dtype)
