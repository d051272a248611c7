"""Generate cases, judge them, and shrink what fails to the smallest case that still does."""

import contextlib
import itertools
import time
from collections.abc import Callable, Container, Iterator

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky
from hypothesis.internal.conjecture import providers
from hypothesis.strategies import SearchStrategy

from harness.case import Case
from harness.compare import Comparison, Verdict
from harness.strategies import steer
from harness.trace import Kind

SHRINK_SECONDS = 60.0
# Hypothesis begins with what is simple and ends by climbing towards what is steered for. Rounds
# of this size keep any long stretch of a campaign as mixed as the whole.
ROUND = 500


class _OutOfTime(BaseException):
    """Ends a shrink; not an Exception, so that Hypothesis does not take it for a failure."""


class _Found(Exception):
    """Marks a failing case for Hypothesis."""


def generate(strategy: SearchStrategy[Case], count: int, seed_value: int) -> list[Case]:
    """The first `count` distinct cases of a seed; fewer only where there are no more.

    No rank is needed to draw them, so they come first.
    """
    found: dict[Case, None] = {}
    _search(strategy, count, seed_value, found.setdefault, shrink=False)
    return list(found)[:count]


def shrink(
    strategy: SearchStrategy[Case],
    count: int,
    seed_value: int,
    failing: Comparison,
    judge: Callable[[Case], Comparison],
    *,
    passed: Container[Case] = (),
    seconds: float = SHRINK_SECONDS,
) -> Comparison:
    """The smallest failure of the same kind that Hypothesis finds in time.

    The same seed draws the same cases, so Hypothesis comes upon a failing one again and then
    knows how it was made; those that have `passed` on the way there are not run twice.
    """
    best, deadline = failing, time.monotonic() + seconds

    def test(case: Case) -> None:
        nonlocal best
        if case in passed:
            return
        if time.monotonic() > deadline:
            raise _OutOfTime
        comparison = judge(case)
        if same_kind(comparison, failing):
            best = comparison
            raise _Found

    # A candidate whose answers change from one run to the next has been seen to fail all the same.
    with contextlib.suppress(_Found, _OutOfTime, Flaky):
        _search(strategy, count, seed_value, test, shrink=True)
    return best


def worth_shrinking(failure: Comparison) -> bool:
    """Whether the case has anything to do with it; ranks that cannot even start are no case's."""
    return failure.fault is None or failure.fault.kind not in (Kind.START, Kind.LAUNCHER)


def same_kind(one: Comparison, other: Comparison) -> bool:
    """Whether shrinking from one to the other still shows the same failure."""
    if one.verdict is not other.verdict:
        return False
    if one.verdict is Verdict.FAULT and one.fault and other.fault:
        return one.fault.kind is other.fault.kind
    return True


@contextlib.contextmanager
def _no_numbers_from_modules() -> Iterator[None]:
    """A seed means the same cases everywhere.

    Hypothesis would also try numbers that it finds in the source of local modules, and so draw
    other cases where other candidates are loaded, or where this package lies somewhere else.
    """
    name = "_get_local_constants"
    original = getattr(providers, name)
    nothing = type(original())()
    try:
        setattr(providers, name, lambda: nothing)
        providers.CONSTANTS_CACHE.cache.clear()
        yield
    finally:
        setattr(providers, name, original)
        providers.CONSTANTS_CACHE.cache.clear()


def _search(
    strategy: SearchStrategy[Case],
    count: int,
    seed_value: int,
    visit: Callable[[Case], None],
    *,
    shrink: bool,
) -> None:
    """Visit cases until `count` distinct ones were seen; the same in the same order always."""
    seen: set[Case] = set()

    def test(case: Case) -> None:
        steer(case)
        seen.add(case)
        visit(case)

    for number in itertools.count():
        before = len(seen)
        if before >= count:
            return
        run = settings(
            max_examples=min(count, ROUND),
            database=None,
            deadline=None,
            derandomize=False,
            report_multiple_bugs=False,
            print_blob=False,
            phases=(Phase.generate, Phase.target, *((Phase.shrink,) if shrink else ())),
            suppress_health_check=list(HealthCheck),
        )
        with _no_numbers_from_modules():
            seed(f"{seed_value}/{number}")(run(given(strategy)(test)))()
        if len(seen) == before:
            return
