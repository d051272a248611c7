"""A relation on trial: it holds for a candidate, and it kills what it says it kills."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import Unsatisfiable

from harness.candidates import locate
from harness.generation import generate
from harness.ranks.pool import RankPool
from harness.trace import Unsupported
from properties.metamorphic.batches import batches
from properties.metamorphic.relation import Relation, runner

# One example takes several runs; and a candidate may refuse most of what is drawn.
patient = settings(
    max_examples=settings().max_examples // 5, suppress_health_check=list(HealthCheck)
)
# So many cases of any kind are tried before a subject is said to support none.
PROBES = 100
# The same draws each time. The rarest bug shows in one of five, so that these are plenty.
determined = settings(max_examples=100, database=None, phases=[Phase.generate])


def check(
    relation: Relation, pool: RankPool, subject: str, drawn: Any, refused: Counter[str]
) -> None:
    mismatch = relation.holds(runner(pool, subject, refused), drawn)
    assert not mismatch, f"{subject}: it is not true that {relation.claim}: {mismatch}"


@contextmanager
def unless_all_is_refused(pool: RankPool, subject: str, refused: Counter[str]) -> Iterator[None]:
    """Skip a relation if the subject supports nothing of what it is about, and say why.

    Who supports no case at all would skip every relation: that is no pass.
    """
    try:
        yield
    except Unsatisfiable:
        if not refused:
            raise
        ((reason, _),) = refused.most_common(1)
        drawn = generate(batches(), PROBES, 0)
        asked = (pool.run(case, locate(locate(subject).full)) for case in drawn)
        if all(isinstance(outcome, Unsupported) for outcome in asked):
            pytest.fail(
                f"{subject} supports none of {PROBES} cases, and nothing is examined: {reason}",
                pytrace=False,
            )
        pytest.skip(f"{subject} supports nothing of what it is about: {reason}")


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
        check(relation, pool, subject, deadly, refused)
    assert not refused
