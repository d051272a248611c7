"""A relation on trial: it holds for a candidate, and it kills what it says it kills."""

from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, find, settings

from harness.ranks.pool import RankPool
from properties.metamorphic.relation import Relation, runner

# One example takes several runs; and a candidate may refuse most of what is drawn.
patient = settings(
    max_examples=settings().max_examples // 5, suppress_health_check=list(HealthCheck)
)
# The same draws each time. The rarest bug shows in one of five, so that these are plenty.
determined = settings(max_examples=100, database=None, phases=[Phase.generate])


def check(relation: Relation, pool: RankPool, subject: str, drawn: Any) -> None:
    mismatch = relation.holds(runner(pool, subject), drawn)
    assert not mismatch, f"{subject}: it is not true that {relation.claim}: {mismatch}"


def check_it_kills(relation: Relation, pool: RankPool) -> None:
    """It does, and in the very same case it accuses nobody else."""
    mutant = runner(pool, f"mutants.{relation.kills}")
    deadly = find(
        relation.drawn,
        lambda drawn: bool(relation.holds(mutant, drawn)),
        settings=determined,
        random=Random(0),
    )
    check(relation, pool, "native-local", deadly)
    check(relation, pool, "native-gather", deadly)
