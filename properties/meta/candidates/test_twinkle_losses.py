"""A step of twinkle with another loss passes as released, and fails with a mistake in it."""

import pytest

from harness.candidates import locate
from harness.case import parse
from harness.compare import Comparison
from harness.judge import Job, Session
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.machine import ranks_of, require_wrong
from properties.planted import in_twinkle

pytestmark = pytest.mark.library

# Two pairs of unequal rows, one in each micro-batch, which the ranks cut.
LINE = (
    "case/1 rows=5:01011,4:0011,3:011,3:001 heads=2/2 layers=1 vocab=11 sp=2 dp=1 micro=2 dim=4 "
    "kernel=sdpa dtype=fp64 seed=3"
)


pool = ranks_of("twinkle", in_twinkle)


def judged(entry: str, pool: RankPool) -> Comparison:
    return Session(pool).judge_one(Job(parse(LINE), locate(f"{in_twinkle.NAME}.{entry}")))


@pytest.mark.parametrize("entry", ["grpo", "packed-dpo"])
def test_a_loss_as_released_passes(entry: str, pool: RankPool) -> None:
    seen = judged(entry, pool)
    assert seen.verdict.passed, explain(seen)


@pytest.mark.parametrize(
    ("entry", "wrong", "right"),
    [
        ("grpo-unscaled", {"grad."}, {"loss", "metric."}),
        # The log aligns by itself.
        ("ppo-one-place-off", {"loss", "grad."}, {"metric."}),
        ("dpo-own-shard", {"loss", "grad."}, set()),
    ],
)
def test_a_mistake_in_a_loss_is_found_where_it_is_made(
    entry: str, wrong: set[str], right: set[str], pool: RankPool
) -> None:
    require_wrong(judged(entry, pool), wrong, right)
