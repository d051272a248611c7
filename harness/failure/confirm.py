"""Whether a failure is the case's own, or needs what its ranks ran before it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.against import ITSELF
from harness.case import Case
from harness.compare import Comparison
from harness.failure.signature import mark_of
from harness.judge import Job, Session
from harness.judge.stages import ask_ranks
from harness.trace import Unsupported


def on_fresh_ranks(
    job: Job, session: Session, before: Sequence[Case] = (), ranks: int = 0
) -> Comparison:
    """Judge a job on ranks that ran nothing else, or nothing but these; on so many at least.

    What the candidate refuses of these has not run before it.
    """
    needed = max(each.ranks for each in (*before, job.case))
    with session.fresh(max(needed, ranks)) as others:
        ran = run_before(before, job, others)
        seen = others.judge_one(job)
        beside = others.pool.size if others.pool.size > needed else 0
        return replace(seen, before=ran, ranks=beside)


def run_before(cases: Sequence[Case], job: Job, session: Session) -> tuple[Case, ...]:
    """Have the ranks run these, whatever comes of it, and all that they are compared with.

    Return those that the candidate does not refuse.
    """
    runs = [ask_ranks(replace(job, case=case), session.pool) for case in cases]
    return tuple(run.job.case for run in runs if not isinstance(run.outcome(), Unsupported))


def rooted_in(before: Sequence[Case], seen: Comparison, session: Session) -> Comparison:
    """A failure after these cases, said to be of a stale state if it passes without them."""
    if not before or not seen.verdict.failed:
        return seen
    alone = on_fresh_ranks(Job.again(seen), session, ranks=seen.ranks)
    if mark_of(alone).same_kind(mark_of(seen)):
        return seen
    return seen.rooted("stale-state", unless_they_ran(before))


def confirmed(
    small: Case, failure: Comparison, session: Session, before: Sequence[Case] = ()
) -> Comparison | None:
    """What fresh ranks show of a failure on a smaller case, where it is still that failure."""
    again = on_fresh_ranks(Job.again(failure, small), session, before, failure.ranks)
    if not mark_of(again).same_kind(mark_of(failure)):
        return None
    if again.seen_as == failure.seen_as or failure.against == ITSELF:
        # Without experiments the name is that which the replay gives.
        return again
    # A small case may look like several things; the one it was made of said which it is.
    return again.named(*(replace(look, larger=True) for look in failure.seen), *again.seen)


def with_what_it_needs(
    failure: Comparison, earlier: Sequence[Case], session: Session
) -> Comparison | None:
    """A failure that fresh ranks do not show, and what they must have run to show it.

    Nothing where it is the case's own: fresh ranks show it.
    """
    if failure.seen_as == "not-repeatable":
        # What comes and goes by chance needs nothing.
        return None
    job, size = Job.again(failure), session.pool.size
    alone = on_fresh_ranks(job, session)
    if mark_of(alone).same_kind(mark_of(failure)):
        return None
    own = failure.case.ranks
    if not alone.ranks and own < size:
        again = on_fresh_ranks(job, session, ranks=size)
        if mark_of(again).same_kind(mark_of(failure)):
            why = f"it passes where there are {own}, and not where there are {size}"
            return again.rooted("ranks-beside", why)
    for before in _suspects(earlier):
        again = on_fresh_ranks(job, session, before)
        if mark_of(again).same_kind(mark_of(failure)):
            return again.rooted("stale-state", unless_they_ran(again.before))
    why = "on fresh ranks it passes, also after what ran before it"
    return failure.rooted("not-repeatable", why)


def unless_they_ran(before: Sequence[Case]) -> str:
    many = "another case" if len(before) == 1 else f"{len(before)} others"
    return f"it passes unless its ranks ran {many} before it"


def _suspects(earlier: Sequence[Case]) -> Iterator[Sequence[Case]]:
    """What is remembered is mostly the last thing, or the first."""
    if earlier:
        yield earlier[-1:]
    if len(earlier) > 1:
        yield earlier[:1]
    if len(earlier) > 2:
        yield earlier
