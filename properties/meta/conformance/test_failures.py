"""A divergence is excused if rounding makes its batch wrong at sp 1 too."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.case import parse
from harness.compare import Verdict
from harness.conformance import Request
from harness.conformance.failures import smallest
from harness.conformance.pools import Pools
from harness.conformance.stage import WRONG_ALONE, Stage, excuse_rounding
from harness.judge import Session
from harness.ranks.pool import RankPool
from properties.helpers.judging import evaluate

SMALL = "case/1 rows=2:11 heads=2/2 layers=1 vocab=5 sp=2 dp=1 dim=2 dtype=fp64 seed=0"


ALONE = """
from harness.candidates.own.native import LocalDialect

class Scaled(LocalDialect):
    name = "scaled"

    def __init__(self, *sps):
        self.sps = sps

    def backward(self, loss):
        super().backward(loss * (2 if self.sp in self.sps else 1))

    def run(self, case, rank, emit):
        self.sp = case.sp
        super().run(case, rank, emit)

SHARED, ALWAYS = Scaled(2), Scaled(1, 2)
"""


# Plain training in bf16 rounds so much here that some gradients may be zero as well.
HIDDEN = (
    "case/1 rows=2:11:left,3:111:left,9:111111101,8:00000111,6:011110,6:000011,5:00000,"
    "10:0000000011:left heads=2/1 layers=2 vocab=32 sp=2 dp=1 model=qwen2 tied=1 micro=2 pad=3 "
    "dtype=bf16 seed=65"
)


def test_an_unjudgeable_batch_and_a_vacuous_run_keep_their_verdicts(
    harness_pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = Pools("", Request())
    monkeypatch.setattr(pools, "of", lambda _ranks: Session(harness_pool))
    for sp in (1, 2):
        hidden = evaluate(replace(parse(HIDDEN), sp=sp), "native-gather", harness_pool)
        assert hidden.verdict is Verdict.UNSUPPORTED
        assert hidden.swallowed
        assert excuse_rounding(hidden, pools) is hidden
    # A step that exchanges nothing between ranks is vacuous, although it is right.
    case = parse("case/1 rows=8:11111111 heads=2/2 layers=1 vocab=16 sp=2 dp=1 seed=0")
    vacuous = evaluate(case, "mutants.B129", harness_pool)
    assert vacuous.verdict is excuse_rounding(vacuous, pools).verdict is Verdict.FAULT


@pytest.mark.slow
def test_a_divergence_is_excused_only_if_rounding_makes_it_wrong_at_sp_1_too(
    tmp_path: Path, harness_pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    pools = Pools("", Request())
    monkeypatch.setattr(pools, "of", lambda _ranks: Session(harness_pool))
    case = parse(SMALL)
    names = (f"{tmp_path}/alone.py:SHARED", f"{tmp_path}/alone.py:ALWAYS", "mutants.B134")
    failures = [evaluate(case, name, harness_pool) for name in names]
    assert {failure.verdict for failure in failures} == {Verdict.DIVERGED}
    shared, always, coarse = (excuse_rounding(failure, pools) for failure in failures)
    # A step that is wrong at sp 1 by more than rounding may be the library's own mistake.
    assert shared.verdict is always.verdict is Verdict.DIVERGED
    assert (coarse.verdict, coarse.reason) == (Verdict.UNSUPPORTED, WRONG_ALONE)
    # Shrinking such a divergence keeps sp 2.
    stage = Stage()
    stage.add(shared)
    ((small, count),) = smallest(stage, pools)
    assert (small.case.sp, count) == (2, 1)
