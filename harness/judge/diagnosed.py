"""Names a failure by experiments: runs of its candidate on further cases."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.against import PLAIN, is_of_recipe
from harness.anomalies import RUN_DEPENDENT
from harness.candidates import Named, locate
from harness.case import Case
from harness.compare import Comparison, Verdict, compare
from harness.compare.picture import Picture
from harness.diagnosis import (
    EXPLAINED_BY_SHARES,
    Evidence,
    diagnose,
    read_weights,
    with_reading,
    with_shares,
)
from harness.judge.job import Job
from harness.judge.recipe_diagnosis import diagnose_by_recipe
from harness.judge.session import Session
from harness.judge.stages import ask_ranks, reference_traces
from harness.reference.threads import one_thread
from harness.trace import Assembly, Fault, Kind

# The most runs of a candidate. Runs are counted rather than time, so that a busy machine finds the
# same name, only later. Few names need more than thirty.
MOST_RUNS = 200
# A time limit all the same, for candidates that take seconds for each case.
DIAGNOSE_SECONDS = 60.0
# The most runs that end in a fault, because each may take as long as the deadline of a case.
MOST_FAULTS = 2

Clock = Callable[[], float]


@one_thread
def add_diagnosis(
    failure: Comparison,
    session: Session,
    seconds: float = DIAGNOSE_SECONDS,
    clock: Clock = time.monotonic,
) -> Comparison:
    """Return a failure with the names and the picture that experiments give it.

    Returns it unchanged if experiments cannot show anything.
    """
    is_vacuous = failure.fault is not None and failure.fault.kind is Kind.VACUOUS
    if failure.verdict is not Verdict.DIVERGED and not is_vacuous:
        return failure
    if failure.inquiry.before or failure.inquiry.ranks or failure.inquiry.seen_as in RUN_DEPENDENT:
        # It depends on what else the ranks run, and experiments run one case at a time.
        return failure
    if is_of_recipe(failure.against):
        job = Job.again(failure)
        until = clock() + seconds
        looks = diagnose_by_recipe(failure, job, session.pool, lambda: clock() < until)
        return failure.found_out(diagnosis=looks)
    if failure.against != PLAIN:
        # The hypotheses that experiments test are about the harness's own model.
        return failure
    asked = Asked(locate(failure.candidate), session, clock() + seconds, clock)
    failure = failure.found_out(diagnosis=diagnose(failure, asked))
    return failure.found_out(picture=_completed_picture(failure, asked))


def _completed_picture(failure: Comparison, asked: "Asked") -> Picture | None:
    """Return the picture with inferred labels and weights, and with the shares of ranks."""
    picture = failure.inquiry.picture
    evidence = asked(failure.case) if picture else None
    if picture is None or evidence is None:
        return picture
    reading = read_weights(evidence)
    if reading:
        picture = with_reading(picture, evidence, reading)
    is_about_shares = (
        failure.inquiry.diagnosis and failure.inquiry.diagnosis[0].name in EXPLAINED_BY_SHARES
    )
    return with_shares(picture, evidence) if is_about_shares else picture


@dataclass(slots=True)
class Asked:
    """Runs a candidate on further cases, within limits of runs, faults and time.

    A call returns the evidence of one case, or None if a limit is reached or the run failed.
    """

    candidate: Named
    session: Session
    # The time on the clock at which no further run begins.
    until: float
    clock: Clock = field(default=time.monotonic, repr=False)
    runs: int = 0
    faults: int = 0

    def __call__(self, case: Case) -> Evidence | None:
        is_over = self.runs >= MOST_RUNS or self.faults >= MOST_FAULTS or self.clock() > self.until
        if is_over or case.ranks > self.session.pool.size:
            return None
        self.runs += 1
        outcome = ask_ranks(Job(case, self.candidate), self.session.pool, traced=True).outcome()
        self.faults += isinstance(outcome, Fault)
        if not isinstance(outcome, Assembly):
            return None
        oracle, baseline = reference_traces(case, traced=True)
        comparison = compare(case, self.candidate.name, oracle, [baseline], outcome)
        return Evidence(comparison, oracle, outcome.trace, outcome.local_rows)
