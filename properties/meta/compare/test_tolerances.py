"""What the budgets of low precisions accept, and what they do not."""

import pytest

from harness.case import Dtype
from harness.compare import Verdict
from harness.generation import cases, generate
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
def test_a_gradient_that_is_wrong_in_a_plain_way_is_found_in_every_case(
    harness_pool: RankPool, wrong: str, dtype: Dtype, count: int
) -> None:
    batch = generate(cases(sps=(2, 4), dps=(1,), dtypes=(dtype,)), count, 0)
    # Something must be supervised, or every gradient is zero, also when it is doubled.
    learning = [case for case in batch if any(row.supervised() for row in case.rows)]
    assert len(learning) > 0.6 * count
    for case in learning:
        comparison = verdict_only(case, f"{GRADIENTS}:{wrong}", harness_pool)
        assert comparison.verdict is Verdict.DIVERGED, explain(comparison)
