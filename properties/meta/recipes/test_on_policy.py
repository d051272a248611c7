"""A loss that sums to zero is held to the roundings of what it sums, and its gradients as ever."""

import pytest

from harness.case import Dtype, parse
from harness.compare import Verdict
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.judging import evaluate, evaluate_all
from properties.helpers.places import PLANTED
from properties.meta.recipes.test_recipes import drawn

# One of two rewards is as far above their mean as the other is below.
PAIR = parse("case/1 rows=4:1111,2:11 heads=2/1 layers=1 vocab=2 sp=2 dp=1 dim=2 seed=0")


def named(name: str) -> str:
    return f"{PLANTED / 'on_policy.py'}:{name}"


@pytest.mark.slow
def test_a_right_step_is_not_blamed_for_roundings_of_a_loss_that_is_zero(pool: RankPool) -> None:
    comparison = evaluate(PAIR, named("right"), pool)
    assert comparison.verdict.passed, explain(comparison)
    assert evaluate(PAIR, named("of_another_row"), pool).verdict is Verdict.DIVERGED


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
def test_a_right_step_on_its_own_answers_passes(dtype: Dtype, pool: RankPool) -> None:
    cases = drawn("", 8, dtype, one_replica=True, ranks=2)
    for comparison in evaluate_all(((case, named("right")) for case in cases), pool):
        assert comparison.verdict.passed, explain(comparison)
