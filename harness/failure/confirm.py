"""Whether a case fails by itself, or only after other cases, or only beside more ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.against import PLAIN
from harness.case import Case
from harness.compare import Comparison
from harness.failure.signature import mark_of
from harness.judge import Job, Session
from harness.judge.stages import ask_ranks
from harness.trace import Unsupported


def judge_on_fresh_ranks(
    job: Job, session: Session, history: Sequence[Case] = (), ranks: int = 0
) -> Comparison:
    """Judge a job on at least `ranks` new ranks, which run only the history before it.

    The comparison records the history without the cases that the candidate refuses.
    """
    needed = max(case.ranks for case in (*history, job.case))
    with session.fresh(max(needed, ranks)) as fresh:
        ran = run_history(history, job, fresh)
        comparison = fresh.judge_one(job)
        recorded_ranks = fresh.pool.size if fresh.pool.size > needed else 0
        return comparison.found_out(before=ran, ranks=recorded_ranks)


def run_history(cases: Sequence[Case], job: Job, session: Session) -> tuple[Case, ...]:
    """Run these cases on the session's ranks as if they were judged, and ignore how they end.

    Return the cases that the job's candidate does not refuse.
    """
    runs = [ask_ranks(replace(job, case=case), session.pool) for case in cases]
    return tuple(run.job.case for run in runs if not isinstance(run.outcome(), Unsupported))


def name_stale_state(
    history: Sequence[Case], comparison: Comparison, session: Session
) -> Comparison:
    """Name a failure seen after a history `stale-state` if fresh ranks do not show it without."""
    if not history or not comparison.verdict.failed:
        return comparison
    alone = judge_on_fresh_ranks(Job.again(comparison), session, ranks=comparison.inquiry.ranks)
    if mark_of(alone).same_kind(mark_of(comparison)):
        return comparison
    return comparison.rooted("stale-state", describe_history(history))


def confirm(
    small: Case, failure: Comparison, session: Session, before: Sequence[Case] = ()
) -> Comparison | None:
    """Judge a smaller case on fresh ranks; return None unless it fails in the same way."""
    again = judge_on_fresh_ranks(Job.again(failure, small), session, before, failure.inquiry.ranks)
    if not mark_of(again).same_kind(mark_of(failure)):
        return None
    if again.inquiry.seen_as == failure.inquiry.seen_as or failure.against != PLAIN:
        # Against itself there are no experiments, so the name must be the one a replay gives.
        return again
    # A small case may fit several names; the larger case that it came from decides.
    return again.named(
        *(replace(look, larger=True) for look in failure.inquiry.seen), *again.inquiry.seen
    )


def find_outside_cause(
    failure: Comparison, earlier: Sequence[Case], session: Session
) -> Comparison | None:
    """Name a failure that its case alone does not show; return None if fresh ranks show it.

    The name is `ranks-beside` if it needs more ranks, `stale-state` if it needs a history out of
    the `earlier` cases, and `not-repeatable` if it never fails again.
    """
    if failure.inquiry.seen_as == "not-repeatable":
        # A failure that comes and goes by chance needs nothing.
        return None
    job, size = Job.again(failure), session.pool.size
    alone = judge_on_fresh_ranks(job, session)
    if mark_of(alone).same_kind(mark_of(failure)):
        return None
    needed = failure.case.ranks
    if not alone.inquiry.ranks and needed < size:
        again = judge_on_fresh_ranks(job, session, ranks=size)
        if mark_of(again).same_kind(mark_of(failure)):
            why = f"it passes where there are {needed}, and not where there are {size}"
            return again.rooted("ranks-beside", why)
    for history in _suspected_histories(earlier):
        again = judge_on_fresh_ranks(job, session, history)
        if mark_of(again).same_kind(mark_of(failure)):
            return again.rooted("stale-state", describe_history(again.inquiry.before))
    why = "on fresh ranks it passes, also after what ran before it"
    return failure.rooted("not-repeatable", why)


def describe_history(before: Sequence[Case]) -> str:
    """Return the sentence that a failure needs these cases before it."""
    cases = "another case" if len(before) == 1 else f"{len(before)} others"
    return f"it passes unless its ranks ran {cases} before it"


def _suspected_histories(earlier: Sequence[Case]) -> Iterator[Sequence[Case]]:
    """Yield the last case, the first, then all: ranks mostly remember the last or the first."""
    if earlier:
        yield earlier[-1:]
    if len(earlier) > 1:
        yield earlier[:1]
    if len(earlier) > 2:
        yield earlier
