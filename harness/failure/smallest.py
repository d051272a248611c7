"""From a failure to its smallest case, confirmed on fresh ranks as a replay will see it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.case import Case
from harness.compare import Comparison
from harness.failure.confirm import confirm, find_outside_cause, judge_on_fresh_ranks
from harness.failure.shrink import SHRINK_SECONDS, Shrunk, shrink
from harness.failure.shrink_history import shrink_with_history
from harness.failure.signature import mark_of
from harness.judge import Job, Session


def shrink_and_confirm(
    failure: Comparison,
    session: Session,
    earlier: Sequence[Case] | None = None,
    seconds: float = SHRINK_SECONDS,
) -> Shrunk:
    """Shrink a failure, and return it as fresh ranks show it on its smallest case.

    If the caller knows the `earlier` cases of the ranks, first find out whether the failure needs
    any of them: a case that needs a history is not shrunk without it.
    """
    until = time.monotonic() + seconds
    caused_outside = None if earlier is None else find_outside_cause(failure, earlier, session)
    if caused_outside is not None:
        shrunk = Shrunk(caused_outside, 0, finished=True)
        if caused_outside.inquiry.before:
            shrunk = shrink_with_history(caused_outside, session, until - time.monotonic())
    else:
        left = until - time.monotonic()
        shrunk = shrink(failure, _judge_like(failure, session), seconds=left)
        small = confirm(shrunk.smallest.case, failure, session, failure.inquiry.before)
        shrunk = replace(shrunk, smallest=failure if small is None else small)
    if shrunk.smallest.case == failure.case:
        return shrunk
    return replace(shrunk, smallest=shrunk.smallest.found_out(larger=failure))


def fewest_layers(failure: Comparison, session: Session) -> Comparison:
    """Find the fewest layers that still fail; return the failure itself if all are needed."""
    judge, mark = _judge_like(failure, session), mark_of(failure)
    for layers in range(1, failure.case.layers):
        case = replace(failure.case, layers=layers)
        if mark_of(judge(case)).same_kind(mark):
            small = confirm(case, failure, session, failure.inquiry.before)
            if small is not None:
                return small
    return failure


def _judge_like(failure: Comparison, session: Session) -> Callable[[Case], Comparison]:
    """Return a function that judges a case after the history of the failure, if it has one."""

    def judge(case: Case) -> Comparison:
        job = Job.again(failure, case)
        if failure.inquiry.before:
            return judge_on_fresh_ranks(job, session, failure.inquiry.before)
        return session.judge_one(job, closely=False)

    return judge
