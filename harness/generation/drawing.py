"""Draw the cases of a campaign: the same ones in the same order for a seed, everywhere."""

import contextlib
import itertools
from collections.abc import Iterator

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.internal.conjecture import providers
from hypothesis.strategies import SearchStrategy

from harness.case import Case
from harness.generation.strategies import steer

# Hypothesis begins with what is simple and ends by climbing towards what is steered for. Rounds
# of this size keep any long stretch of a campaign as mixed as the whole.
ROUND = 500


def generate(strategy: SearchStrategy[Case], count: int, seed_value: int) -> list[Case]:
    """The first `count` distinct cases of a seed; fewer only where there are no more.

    No rank is needed to draw them, so they come first.
    """
    found: dict[Case, None] = {}

    def test(case: Case) -> None:
        steer(case)
        found[case] = None

    for number in itertools.count():
        before = len(found)
        if before >= count:
            break
        run = settings(
            max_examples=min(count, ROUND),
            database=None,
            deadline=None,
            derandomize=False,
            print_blob=False,
            phases=(Phase.generate, Phase.target),
            suppress_health_check=list(HealthCheck),
        )
        with _no_numbers_from_modules():
            seed(f"{seed_value}/{number}")(run(given(strategy)(test)))()
        if len(found) == before:
            break
    return list(found)[:count]


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
