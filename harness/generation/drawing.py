"""Draw the cases of a campaign: the same ones in the same order for a seed, everywhere."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random

from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

from harness.case import Case
from harness.generation.situations import situations_of

# From so many, the one in the rarest situations becomes the next case of a campaign.
CHOICE = 3
# Enough for the largest batch that a strategy of ours describes.
BYTES = 1 << 12
# So many times in a row nothing new: there is nothing more.
PATIENCE = 200


def drawn(strategy: SearchStrategy[Case], seed: int) -> Iterator[Case]:
    """The distinct cases of a seed, as many as there are.

    No rank is needed to draw them. Hypothesis reads each from random bytes, and so from nothing
    else: not from its database, nor from what other modules are loaded.
    """
    source, draw = Random(seed), _reader(strategy)  # noqa: S311 - nothing is secret here
    chosen: set[Case] = set()
    met: Counter[str] = Counter()
    in_vain = 0
    while in_vain < PATIENCE:
        fresh = [case for case in draw(source) if case not in chosen]
        in_vain = 0 if fresh else in_vain + 1
        if fresh:
            rarest = max(fresh, key=lambda case: _rarity(case, met))
            met.update(situations_of(rarest))
            chosen.add(rarest)
            yield rarest


def generate(strategy: SearchStrategy[Case], count: int, seed: int) -> list[Case]:
    """The first `count` of them; fewer only where there are no more."""
    return list(islice(drawn(strategy, seed), count))


def _rarity(case: Case, met: Counter[str]) -> float:
    return sum(1 / (1 + met[situation]) for situation in situations_of(case))


def _reader(strategy: SearchStrategy[Case]) -> Callable[[Random], list[Case]]:
    """What turns random bytes into some cases."""
    read: list[Case] = []

    @settings(database=None, deadline=None)
    @given(strategy)
    def keep(case: Case) -> None:
        read.append(case)

    def draw(source: Random) -> list[Case]:
        read.clear()
        for _ in range(CHOICE):
            keep.hypothesis.fuzz_one_input(source.randbytes(BYTES))  # type: ignore[attr-defined]
        return list(read)

    return draw
