"""Which property, of those that ask no reference, kills a mutant."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import Flaky, NoSuchExample
from hypothesis.strategies import SearchStrategy, tuples

from harness.candidates import locate
from harness.case import Case
from harness.generation import cases
from harness.ranks.pool import RankPool
from harness.trace import Assembly, Fault
from properties.metamorphic.content import CONTENT
from properties.metamorphic.layout import LAYOUT
from properties.metamorphic.relation import Relation, runner
from properties.step.test_determinism import repeated
from properties.step.test_slope import misfit

# A mutant that shows in one of ten draws is met with a probability of 0.99. Most show at once.
FEW, DRAWS = 6, 50


@dataclass(frozen=True)
class Alone:
    """A property, and how to tell that a candidate breaks it."""

    claim: str
    drawn: SearchStrategy[Any]
    # Whether the candidate breaks it on what was drawn.
    broken: Callable[[RankPool, str, Any], bool]

    def kills(self, candidate: str, pool: RankPool, draws: int = DRAWS) -> bool:
        """Whether the same draws, each time, break it at least once."""
        try:
            find(
                self.drawn,
                lambda drawn: self._breaks(pool, candidate, drawn),
                settings=settings(
                    max_examples=draws,
                    database=None,
                    deadline=None,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                ),
                random=Random(0),
            )
        except NoSuchExample:
            return False
        except Flaky:
            # Broken once is broken: what a mutant remembers may make it right the next time.
            return True
        return True

    def _breaks(self, pool: RankPool, candidate: str, drawn: Any) -> bool:
        try:
            return self.broken(pool, candidate, drawn)
        except AssertionError:
            # A run came to no end or did not fit together: that is another property's.
            return False


def _unfit(pool: RankPool, candidate: str, case: Case) -> bool:
    pool.submit(case, locate(locate(candidate).full), traced=True)
    outcome = pool.collect()
    if isinstance(outcome, Fault):
        return True
    assert isinstance(outcome, Assembly)
    return bool(outcome.misfits or outcome.out_of_step or _alone(case, outcome))


def _alone(case: Case, outcome: Assembly) -> bool:
    return case.sp > 1 and outcome.silent


def _related(relation: Relation) -> Alone:
    def broken(pool: RankPool, candidate: str, drawn: Any) -> bool:
        return bool(relation.holds(runner(pool, candidate, Counter()), drawn))

    return Alone(relation.claim, relation.drawn, broken)


FITS = "a run comes to its end, and its parts fit together"
SLOPE = "the gradient is the slope of the reported loss"
REPEATS = "the same case gives the same bits, whatever ran before"


def _all() -> Iterator[Alone]:
    """Those that kill most come first."""
    yield Alone(FITS, cases(max_ranks=4), _unfit)
    related = {relation.claim: _related(relation) for relation in (*LAYOUT, *CONTENT)}
    yield related.pop("four ranks may be replicas or peers")
    yield Alone(SLOPE, cases(max_ranks=4), lambda pool, name, case: bool(misfit(case, name, pool)))
    yield from related.values()
    yield Alone(
        REPEATS,
        tuples(cases(max_ranks=4), cases(max_ranks=4)),
        lambda pool, name, two: bool(repeated(two[0], two[1], name, pool)),
    )


PROPERTIES = {alone.claim: alone for alone in _all()}


def killer(candidate: str, pool: RankPool) -> str:
    """A property that kills, or nothing."""
    # What hangs now and then would cost all others a deadline each time.
    if PROPERTIES[FITS].kills(candidate, pool, DRAWS):
        return FITS
    for draws in (FEW, DRAWS):
        for claim, alone in PROPERTIES.items():
            if alone.kills(candidate, pool, draws):
                return claim
    return ""
