"""A step of AReaL's engine passes as released, and fails with a mistake in it."""

import pytest

from harness.candidates import locate
from harness.case import parse
from harness.compare import Comparison
from harness.judge import Job, Session
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.machine import ranks_of, require_wrong
from properties.planted import in_areal

pytestmark = pytest.mark.library

# Two micro-batches with other numbers of targets, and rows that the ranks cut.
LINE = (
    "case/1 rows=5:01101,3:011,4:0111,2:01 heads=2/2 layers=1 vocab=11 sp=2 dp=1 micro=2 dim=4 "
    "dtype=fp64 seed=3"
)


pool = ranks_of("areal", in_areal)


def judged(entry: str, pool: RankPool) -> Comparison:
    return Session(pool).judge_one(Job(parse(LINE), locate(f"{in_areal.NAME}.{entry}")))


def test_an_engine_as_released_passes(pool: RankPool) -> None:
    seen = judged("actor", pool)
    assert seen.verdict.passed, explain(seen)


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ("actor-unscaled", {"grad."}),
        ("actor-labels", {"loss", "metric.kl", "grad."}),
        ("critic-by-micro-batch", {"grad."}),
    ],
)
def test_a_mistake_of_an_engine_is_found_where_it_is_made(
    entry: str, wrong: set[str], pool: RankPool
) -> None:
    # Nothing else that is logged is wrong, unless it is named.
    require_wrong(judged(entry, pool), wrong, {"loss"} - wrong)
