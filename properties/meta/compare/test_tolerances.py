"""No budget below fp64 accepts a gradient that is wrong by a factor or in part."""

import pytest

from harness.case import Dtype
from harness.compare import Verdict
from harness.generation import cases, draw_list
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.judging import verdict_only
from properties.helpers.places import PLANTED

GRADIENTS = PLANTED / "gradients.py"
WRONG = ("ZERO", "DOUBLED", "NEGATED", "DIVIDED_BY_SP", "A_LAYER_MISSING", "LAST_SLICE_ZEROED")


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("count", [4, pytest.param(25, marks=pytest.mark.long)])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("wrong", WRONG)
def test_an_obviously_wrong_gradient_diverges_in_every_case_with_targets(
    harness_pool: RankPool, wrong: str, dtype: Dtype, count: int
) -> None:
    batch = draw_list(cases(sps=(2, 4), dps=(1,), dtypes=(dtype,)), count, 0)
    # Without a target every gradient is zero, and so is its double.
    learning = [case for case in batch if any(row.supervised() for row in case.rows)]
    assert len(learning) > 0.6 * count
    for case in learning:
        comparison = verdict_only(case, f"{GRADIENTS}:{wrong}", harness_pool)
        assert comparison.verdict is Verdict.DIVERGED, explain(comparison)
