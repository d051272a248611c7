"""A step of verl's workers passes as released, and fails with a mistake in it."""

import pytest

from harness.candidates import locate
from harness.case import parse
from harness.compare import Comparison, Verdict
from harness.judge import Job, Session
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.machine import ranks_of, require_wrong
from properties.planted import in_worker

pytestmark = pytest.mark.library

# Two micro-batches with other numbers of targets, and rows that the ranks cut.
LINE = (
    "case/1 rows=5:01101,3:011,4:0111,2:01 heads=2/2 layers=1 vocab=11 sp=2 dp=1 micro=2 dim=4 "
    "dtype=fp32 seed=3"
)


pool = ranks_of("verl", in_worker)


def judged(entry: str, pool: RankPool, setting: str = "") -> Comparison:
    case = parse(f"{LINE} {setting}")
    return Session(pool).judge_one(Job(case, locate(f"{in_worker.NAME}.{entry}")))


def test_a_worker_as_released_passes(pool: RankPool) -> None:
    seen = judged("critic", pool)
    assert seen.verdict.passed, explain(seen)


@pytest.mark.parametrize("entry", ["critic-by-micro-batch", "actor-one-place-off"])
def test_a_mistake_of_a_worker_is_found_in_its_loss_and_gradients(
    entry: str, pool: RankPool
) -> None:
    require_wrong(judged(entry, pool), {"loss", "grad."})


@pytest.mark.parametrize("setting", ["setting.entropy_coeff=0.01", "setting.use_kl_loss=true"])
def test_a_mistake_in_a_bonus_shows_where_a_setting_turns_it_on(
    setting: str, pool: RankPool
) -> None:
    assert judged("actor-bonus-doubled", pool).verdict.passed
    seen = judged("actor-bonus-doubled", pool, setting)
    assert seen.verdict is Verdict.DIVERGED, explain(seen)
