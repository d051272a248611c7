"""Find a property that kills a mutant without any reference."""

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
from properties.step.test_determinism import differs_when_repeated
from properties.step.test_slope import misfit

# With a probability of 0.99, 50 draws find a mutant that shows in one draw of ten. Most mutants
# show in the first few draws.
FEW, DRAWS = 6, 50


@dataclass(frozen=True)
class Property:
    """A property that needs no reference, and a function that tests it on one draw."""

    claim: str
    drawn: SearchStrategy[Any]
    # Whether a candidate breaks the property on one draw.
    is_broken: Callable[[RankPool, str, Any], bool]

    def kills(self, candidate: str, pool: RankPool, draws: int = DRAWS) -> bool:
        """Whether the candidate breaks the property on one of the draws, always the same ones."""
        try:
            find(
                self.drawn,
                lambda drawn: self._is_broken(pool, candidate, drawn),
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
            # Once is enough: a mutant that keeps state may be right when it runs again.
            return True
        return True

    def _is_broken(self, pool: RankPool, candidate: str, drawn: Any) -> bool:
        try:
            return self.is_broken(pool, candidate, drawn)
        except AssertionError:
            # A run failed or did not fit together, which is the subject of the property `FITS`.
            return False


def _is_unfit(pool: RankPool, candidate: str, case: Case) -> bool:
    pool.submit(case, locate(locate(candidate).full), traced=True)
    outcome = pool.collect()
    if isinstance(outcome, Fault):
        return True
    assert isinstance(outcome, Assembly)
    return bool(outcome.misfits or outcome.out_of_step or _shares_nothing(case, outcome))


def _shares_nothing(case: Case, outcome: Assembly) -> bool:
    return case.sp > 1 and outcome.silent


def _property_of(relation: Relation) -> Property:
    def is_broken(pool: RankPool, candidate: str, drawn: Any) -> bool:
        return bool(relation.holds(runner(pool, candidate, Counter()), drawn))

    return Property(relation.claim, relation.drawn, is_broken)


FITS = "a run comes to its end, and its parts fit together"
SLOPE = "the gradient is the slope of the reported loss"
REPEATS = "the same case gives the same bits, whatever ran before"


def _all_properties() -> Iterator[Property]:
    """Yield all properties; those that kill most mutants come first."""
    yield Property(FITS, cases(max_ranks=4), _is_unfit)
    relations = {relation.claim: _property_of(relation) for relation in (*LAYOUT, *CONTENT)}
    yield relations.pop("four ranks may be replicas or peers")
    yield Property(
        SLOPE, cases(max_ranks=4), lambda pool, name, case: bool(misfit(case, name, pool))
    )
    yield from relations.values()
    yield Property(
        REPEATS,
        tuples(cases(max_ranks=4), cases(max_ranks=4)),
        lambda pool, name, two: bool(differs_when_repeated(two[0], two[1], name, pool)),
    )


PROPERTIES = {prop.claim: prop for prop in _all_properties()}


def killer(candidate: str, pool: RankPool) -> str:
    """Return the claim of a property that kills a candidate, or "" if none does."""
    # First, since each hang of a candidate would cost every other property a deadline.
    if PROPERTIES[FITS].kills(candidate, pool, DRAWS):
        return FITS
    for draws in (FEW, DRAWS):
        for claim, prop in PROPERTIES.items():
            if prop.kills(candidate, pool, draws):
                return claim
    return ""
