"""What a failure comes to: whose it is, and its smallest case."""

from dataclasses import replace

from harness.compare import Comparison, Verdict, unsupported
from harness.conformance.pools import Pools
from harness.conformance.tally import Tally, name_of
from harness.failure.confirm import confirmed
from harness.failure.shrink import shrink
from harness.judge import evaluate, verdict_only
from harness.judge.known import recognised

SHRINK_SECONDS = 20.0
WRONG_ALONE = "wrong at sp 1 as well: its model rounds more than plain training does"


def blamed(seen: Comparison, pools: Pools) -> Comparison:
    """The same, unless rounding alone makes its batch wrong at sp 1: nothing shared is to blame.

    What is wrong there by more than rounding is kept: it may be the library's.
    """
    if seen.verdict is not Verdict.DIVERGED or seen.case.sp == 1:
        return seen
    alone = replace(seen.case, sp=1)
    if name_of(evaluate(alone, seen.candidate, pools.of(alone.ranks))) == "low-precision":
        return unsupported(seen.case, seen.candidate, WRONG_ALONE)
    return seen


def smallest(tally: Tally, pools: Pools) -> list[tuple[Comparison, int]]:
    """One failure of each kind, a divergence shrunk, and seen on ranks that ran nothing before."""
    return [(_shrunk(first, pools), count) for first, count in tally.first.values()]


def _shrunk(first: Comparison, pools: Pools) -> Comparison:
    if first.verdict is not Verdict.DIVERGED:
        return first
    found = shrink(
        first,
        lambda case: verdict_only(case, first.candidate, pools.of(case.ranks)),
        seconds=SHRINK_SECONDS,
    )
    case = found.smallest.case
    small = confirmed(case, first, pools.of(case.ranks))
    if small is None:
        return first
    # On the way down one may slip into another fault, which is listed by what itself looks like.
    itself = small.named(*(look for look in small.looks if not look.larger))
    return first if recognised(itself).verdict is Verdict.KNOWN else small
