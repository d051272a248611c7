"""A step of ms-swift's trainers passes as released, and fails with a mistake in it."""

import pytest

from harness.candidates import locate
from harness.case import parse
from harness.compare import Comparison
from harness.judge import Job, Session
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.machine import ranks_of, require_wrong
from properties.planted import in_swift

pytestmark = pytest.mark.library

# Two pairs of unequal rows, one in each micro-batch, which the ranks cut.
LINE = (
    "case/1 rows=5:01011,4:0011,3:011,3:001 heads=2/2 layers=1 vocab=11 sp=2 dp=1 micro=2 dim=4 "
    "dtype=fp64 seed=3"
)
# What the case of a mistake states in addition.
OF_CASES = {"dapo-divided-twice": "setting.loss_type=dapo"}

pool = ranks_of("ms_swift", in_swift)


def judged(entry: str, pool: RankPool) -> Comparison:
    case = parse(f"{LINE} {OF_CASES.get(entry, '')}")
    return Session(pool).judge_one(Job(case, locate(f"{in_swift.NAME}.{entry}")))


@pytest.mark.parametrize("entry", ["dpo", "grpo"])
def test_a_trainer_as_released_passes(entry: str, pool: RankPool) -> None:
    seen = judged(entry, pool)
    assert seen.verdict.passed, explain(seen)


@pytest.mark.parametrize(
    ("entry", "wrong", "right"),
    [
        ("dpo-unscaled", {"grad."}, {"loss", "metric."}),
        # The log is a mean over ranks, which adds up to the right one.
        ("dpo-own-shard", {"loss", "grad."}, {"metric.logps_chosen"}),
        ("grpo-one-place-off", {"loss", "metric.entropy", "grad."}, set()),
        ("dapo-divided-twice", {"loss", "grad."}, {"metric."}),
    ],
)
def test_a_mistake_of_a_trainer_is_found_where_it_is_made(
    entry: str, wrong: set[str], right: set[str], pool: RankPool
) -> None:
    require_wrong(judged(entry, pool), wrong, right)
