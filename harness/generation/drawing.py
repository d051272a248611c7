"""Draw the cases of a campaign: a seed gives the same cases in the same order everywhere."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random

from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

from harness.case import Case
from harness.generation.situations import situations_of

# The next case of a campaign is the one in the rarest situations out of this many.
CHOICES = 3
# Enough random bytes for the largest batch that any of our strategies describes.
BYTES = 1 << 12
# After this many attempts in a row without a new case, the strategy counts as used up.
PATIENCE = 200


def draw_cases(strategy: SearchStrategy[Case], seed: int) -> Iterator[Case]:
    """Yield the distinct cases of a seed, as many as there are.

    Drawing needs no rank. Hypothesis reads each case from random bytes, and from nothing else:
    neither its database nor other loaded modules change the cases.
    """
    source, draw = Random(seed), _reader(strategy)  # noqa: S311 - nothing is secret here
    chosen: set[Case] = set()
    met: Counter[str] = Counter()
    failures = 0
    while failures < PATIENCE:
        fresh = [case for case in draw(source) if case not in chosen]
        failures = 0 if fresh else failures + 1
        if fresh:
            rarest = max(fresh, key=lambda case: _rarity(case, met))
            met.update(situations_of(rarest))
            chosen.add(rarest)
            yield rarest


def draw_list(strategy: SearchStrategy[Case], count: int, seed: int) -> list[Case]:
    """Return the first `count` cases of a seed; fewer only if the strategy has no more."""
    return list(islice(draw_cases(strategy, seed), count))


def _rarity(case: Case, met: Counter[str]) -> float:
    return sum(1 / (1 + met[situation]) for situation in situations_of(case))


def _reader(strategy: SearchStrategy[Case]) -> Callable[[Random], list[Case]]:
    """Return a function that reads a few cases from random bytes."""
    read: list[Case] = []

    @settings(database=None, deadline=None)
    @given(strategy)
    def keep(case: Case) -> None:
        read.append(case)

    def draw(source: Random) -> list[Case]:
        read.clear()
        for _ in range(CHOICES):
            keep.hypothesis.fuzz_one_input(source.randbytes(BYTES))  # type: ignore[attr-defined]
        return list(read)

    return draw
