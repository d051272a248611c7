"""Check that a relation holds for a candidate, and that it kills its mutant."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import Unsatisfiable

from harness.candidates import locate
from harness.generation import draw_list
from harness.ranks.pool import RankPool
from harness.trace import Unsupported
from properties.metamorphic.batches import batches
from properties.metamorphic.relation import Relation, runner

# An example takes several runs, and a candidate may refuse most of what is drawn.
expensive_examples = settings(
    max_examples=settings().max_examples // 5, suppress_health_check=list(HealthCheck)
)
# A subject that refuses so many cases of any kind supports none.
PROBES = 100
# The draws are always the same. The rarest bug shows in one of five, so 100 suffice.
deterministic = settings(max_examples=100, database=None, phases=[Phase.generate])


def check(
    relation: Relation, pool: RankPool, subject: str, drawn: Any, refused: Counter[str]
) -> None:
    __tracebackhide__ = True
    mismatch = relation.holds(runner(pool, subject, refused), drawn)
    assert not mismatch, f"{subject}: it is not true that {relation.claim}: {mismatch}"


@contextmanager
def unless_all_is_refused(pool: RankPool, subject: str, refused: Counter[str]) -> Iterator[None]:
    """Skip a relation if the subject supports none of its cases, with the reason.

    Fail if the subject supports no case at all, since it would skip every relation.
    """
    try:
        yield
    except Unsatisfiable:
        if not refused:
            raise
        ((reason, _),) = refused.most_common(1)
        drawn = draw_list(batches(), PROBES, 0)
        outcomes = (pool.run(case, locate(locate(subject).full)) for case in drawn)
        if all(isinstance(outcome, Unsupported) for outcome in outcomes):
            pytest.fail(
                f"{subject} supports none of {PROBES} cases, and nothing is examined: {reason}",
                pytrace=False,
            )
        pytest.skip(f"{subject} supports nothing of what it is about: {reason}")


def check_it_kills(relation: Relation, pool: RankPool) -> None:
    """Check that the relation kills its mutant on a case, and passes the native step on it."""
    refused = Counter[str]()
    mutant = runner(pool, f"mutants.{relation.kills}", refused)
    deadly = find(
        relation.drawn,
        lambda drawn: bool(relation.holds(mutant, drawn)),
        settings=deterministic,
        random=Random(0),
    )
    for subject in ("native-local", "native-gather"):
        check(relation, pool, subject, deadly, refused)
    assert not refused
