"""The smallest case of a failure, seen once more where whoever replays it will see it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.case import Case
from harness.compare import Comparison
from harness.failure.confirm import confirmed, on_fresh_ranks, with_what_it_needs
from harness.failure.shrink import SHRINK_SECONDS, Shrunk, shrink
from harness.failure.shrink_history import shrink_sequence
from harness.failure.signature import mark_of
from harness.judge import Job, Session


def smallest(
    failure: Comparison,
    session: Session,
    earlier: Sequence[Case] | None = None,
    seconds: float = SHRINK_SECONDS,
) -> Shrunk:
    """The failure on its smallest case and on fresh ranks.

    Where these do not show it and it is known what ranks ran `earlier`, with what it needs of
    that. This is asked first: a case that needs others is not made smaller without them.
    """
    until = time.monotonic() + seconds
    needs = None if earlier is None else with_what_it_needs(failure, earlier, session)
    if needs is not None:
        shrunk = Shrunk(needs, 0, finished=True)
        if needs.before:
            shrunk = shrink_sequence(needs, session, until - time.monotonic())
    else:
        left = until - time.monotonic()
        shrunk = shrink(failure, _judge(failure, session), seconds=left)
        small = confirmed(shrunk.smallest.case, failure, session, failure.before)
        shrunk = replace(shrunk, smallest=failure if small is None else small)
    if shrunk.smallest.case == failure.case:
        return shrunk
    return replace(shrunk, smallest=replace(shrunk.smallest, larger=failure))


def fewest_layers(failure: Comparison, session: Session) -> Comparison:
    """Find the fewest layers that still fail; return the failure itself if all are needed."""
    judge, mark = _judge(failure, session), mark_of(failure)
    for layers in range(1, failure.case.layers):
        case = replace(failure.case, layers=layers)
        if mark_of(judge(case)).same_kind(mark):
            small = confirmed(case, failure, session, failure.before)
            if small is not None:
                return small
    return failure


def _judge(failure: Comparison, session: Session) -> Callable[[Case], Comparison]:
    """As it was seen: after the cases that its ranks must have run before."""

    def judge(case: Case) -> Comparison:
        job = Job.again(failure, case)
        if failure.before:
            return on_fresh_ranks(job, session, failure.before)
        return session.judge_one(job, closely=False)

    return judge
