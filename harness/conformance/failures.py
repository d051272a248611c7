"""Find the smallest case of each kind of failure."""

from harness.case import Case
from harness.compare import Comparison, Verdict
from harness.conformance.pools import Pools
from harness.conformance.stage import Stage
from harness.failure.confirm import confirm
from harness.failure.shrink import shrink
from harness.judge import Job
from harness.judge.known import mark_known

SHRINK_SECONDS = 20.0


def smallest(stage: Stage, pools: Pools) -> list[tuple[Comparison, int]]:
    """Return one failure of each kind, and how many cases failed like it.

    A divergence is shrunk, and confirmed on ranks that ran nothing before.
    """
    return [(_shrunk(first, pools), count) for first, count in stage.first.values()]


def _shrunk(first: Comparison, pools: Pools) -> Comparison:
    if first.verdict is not Verdict.DIVERGED:
        return first

    def judge(case: Case) -> Comparison:
        return pools.of(case.ranks).judge_one(Job.again(first, case), closely=False)

    shrunk = shrink(first, judge, seconds=SHRINK_SECONDS)
    case = shrunk.smallest.case
    small = confirm(case, first, pools.of(case.ranks))
    if small is None:
        return first
    # Shrinking may have slipped into a listed bug. `recognised` must look at this case alone, and
    # not at the names that the larger case had.
    alone = small.named(*(look for look in small.inquiry.seen if not look.larger))
    return first if mark_known(alone).verdict is Verdict.KNOWN else small
