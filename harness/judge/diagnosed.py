"""A failure named by experiments with the candidate that it was seen on."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from harness.against import ITSELF
from harness.anomalies import OF_RUNS
from harness.candidates import Named, locate
from harness.case import Case
from harness.compare import Comparison, Verdict, compare
from harness.compare.picture import Picture
from harness.diagnosis import (
    OF_SHARES,
    Evidence,
    diagnose,
    read,
    with_shares,
    with_what_gradients_tell,
)
from harness.judge.job import Job
from harness.judge.session import Session
from harness.judge.stages import ask_ranks, reference_traces
from harness.reference.threads import one_thread
from harness.trace import Assembly, Fault, Kind

# How often a candidate is run at most: work is counted and not time, so that a busy machine finds
# the same name, a little later. Few names need more than thirty.
MOST_RUNS = 200
# For a candidate that takes seconds for each case.
DIAGNOSE_SECONDS = 60.0
# Each may take as long as ranks may.
MOST_FAULTS = 2

Clock = Callable[[], float]


@one_thread
def diagnosed(
    failure: Comparison,
    session: Session,
    seconds: float = DIAGNOSE_SECONDS,
    clock: Clock = time.monotonic,
) -> Comparison:
    """Add what experiments say of a failure, if they can say anything."""
    vacuous = failure.fault is not None and failure.fault.kind is Kind.VACUOUS
    # What depends on what ran before, or beside, shows nothing on a case alone.
    by_itself = not failure.before and not failure.ranks and failure.seen_as not in OF_RUNS
    if not (failure.verdict is Verdict.DIVERGED or vacuous) or not by_itself:
        return failure
    if failure.against == ITSELF:
        # Hypotheses are of our own model.
        return failure
    asked = Asked(locate(failure.candidate), session, clock() + seconds, clock)
    named = replace(failure, diagnosis=diagnose(failure, asked))
    return replace(named, picture=_with_what_was_found(named, asked))


def _with_what_was_found(failure: Comparison, asked: "Asked") -> Picture | None:
    """Its picture, with labels and weights that the candidate does not show, and ranks' shares."""
    picture = failure.picture
    evidence = asked(failure.case) if picture else None
    if picture is None or evidence is None:
        return picture
    reading = read(evidence)
    if reading:
        picture = with_what_gradients_tell(picture, evidence, reading)
    of_shares = failure.diagnosis and failure.diagnosis[0].name in OF_SHARES
    return with_shares(picture, evidence) if of_shares else picture


@dataclass(slots=True)
class Asked:
    """What ranks make of a case, as long as there are runs left and they do not fail."""

    candidate: Named
    session: Session
    until: float
    clock: Clock = field(default=time.monotonic, repr=False)
    runs: int = 0
    faults: int = 0

    def __call__(self, case: Case) -> Evidence | None:
        over = self.runs >= MOST_RUNS or self.faults >= MOST_FAULTS or self.clock() > self.until
        if over or case.ranks > self.session.pool.size:
            return None
        self.runs += 1
        outcome = ask_ranks(Job(case, self.candidate), self.session.pool, traced=True).outcome()
        self.faults += isinstance(outcome, Fault)
        if not isinstance(outcome, Assembly):
            return None
        oracle, baseline = reference_traces(case, traced=True)
        seen = compare(case, self.candidate.name, oracle, [baseline], outcome)
        return Evidence(seen, oracle, outcome.trace, outcome.local_rows)
