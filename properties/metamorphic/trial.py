"""A relation on trial: it holds for a candidate, and it kills what it says it kills."""

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis.errors import Unsatisfiable

from harness.ranks.pool import RankPool
from properties.metamorphic.relation import Relation, runner

# One example takes several runs; and a candidate may refuse most of what is drawn.
patient = settings(
    max_examples=settings().max_examples // 5, suppress_health_check=list(HealthCheck)
)
# The same draws each time. The rarest bug shows in one of five, so that these are plenty.
determined = settings(max_examples=100, database=None, phases=[Phase.generate])


def check(relation: Relation, pool: RankPool, subject: str, limits: settings = patient) -> None:
    """It holds for whatever the subject supports of what is drawn."""
    refused = Counter[str]()

    @limits
    @given(drawn=relation.drawn)
    def holds(drawn: Any) -> None:
        check_on(drawn, relation, pool, subject, refused)

    try:
        holds()
    except Unsatisfiable:
        if not refused:
            raise
        ((reason, _),) = refused.most_common(1)
        pytest.skip(f"{subject} supports nothing of what it is about: {reason}")


def check_on(
    drawn: Any, relation: Relation, pool: RankPool, subject: str, refused: Counter[str]
) -> None:
    mismatch = relation.holds(runner(pool, subject, refused), drawn)
    assert not mismatch, f"{subject}: it is not true that {relation.claim}: {mismatch}"


def check_it_kills(relation: Relation, pool: RankPool) -> None:
    """It does, and in the very same case it accuses nobody else."""
    refused = Counter[str]()
    mutant = runner(pool, f"mutants.{relation.kills}", refused)
    deadly = find(
        relation.drawn,
        lambda drawn: bool(relation.holds(mutant, drawn)),
        settings=determined,
        random=Random(0),
    )
    for subject in ("native-local", "native-gather"):
        check_on(deadly, relation, pool, subject, refused)
    assert not refused
