"""The property that everything else serves: sharded training is plain training."""

import pytest
from hypothesis import given

from harness.case import Case, Dtype, parse
from harness.compare import Verdict
from harness.plugin import Evaluate
from harness.ranks.pool import RankPool
from harness.report import explain
from harness.run import evaluate_all
from harness.search import generate
from harness.strategies import cases, steer
from harness.trace import Assembly, Kind

DIALECTS = ("native-gather", "native-local")


@pytest.mark.parametrize("candidate", DIALECTS)
@given(case=cases(max_ranks=4))
def test_fp64_holds_to_1e12_of_every_tensor(
    harness_evaluate: Evaluate, candidate: str, case: Case
) -> None:
    steer(case)
    comparison = harness_evaluate(case, candidate)
    assert comparison.verdict.passed, explain(comparison)
    assert comparison.elements


@pytest.mark.parametrize("candidate", DIALECTS)
@given(case=cases(max_ranks=4, dtypes=("fp32",)))
def test_fp32_holds_inside_derived_budgets(
    harness_evaluate: Evaluate, candidate: str, case: Case
) -> None:
    steer(case)
    comparison = harness_evaluate(case, candidate)
    assert comparison.verdict.passed, explain(comparison)


@pytest.mark.parametrize("candidate", DIALECTS)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_half_precision_is_inside_its_budget_or_said_to_be_beyond_judging(
    harness_pool: RankPool, candidate: str, dtype: Dtype
) -> None:
    batch = generate(cases(max_ranks=4, max_layers=1, dtypes=(dtype,)), 20, 0)
    found = list(evaluate_all(((case, candidate) for case in batch), harness_pool))
    passed = [comparison for comparison in found if comparison.verdict.passed]
    for comparison in found:
        # Plain training itself can be so far off that any candidate would do. That is no pass.
        beyond = comparison.fault is not None and comparison.fault.kind is Kind.VACUOUS
        assert comparison.verdict.passed or beyond, explain(comparison)
    assert 2 * len(passed) > len(found)


@pytest.mark.parametrize("candidate", DIALECTS)
def test_a_kernel_that_is_not_wired_is_unsupported_and_not_passed(
    harness_evaluate: Evaluate, candidate: str
) -> None:
    comparison = harness_evaluate(parse("case/1 rows=2:11 kernel=flash"), candidate)
    assert comparison.verdict is Verdict.UNSUPPORTED
    assert not comparison.verdict.passed
    assert "kernel=flash" in comparison.reason


def test_exchanging_q_k_and_v_takes_one_collective_and_the_way_back_another(
    harness_evaluate: Evaluate,
) -> None:
    comparison = harness_evaluate(parse("case/1 rows=5:11111 heads=4/4 layers=3 sp=2"))
    # Two forward and two backward for each layer.
    assert comparison.collectives["all_to_all"] == 4 * 3


def test_recomputing_activations_repeats_only_the_forward_exchange(
    harness_evaluate: Evaluate,
) -> None:
    comparison = harness_evaluate(
        parse("case/1 rows=5:11111 heads=4/4 layers=3 sp=2 checkpoint=1")
    )
    assert comparison.verdict.passed, explain(comparison)
    assert comparison.collectives["all_to_all"] == 6 * 3


def test_the_notebooks_batch_is_rolled_padded_and_cut_as_the_notebook_says(
    harness_pool: RankPool,
) -> None:
    case = parse("case/1 rows=4:1111,3:111 ids=[1,2,3,4],[5,6,7] heads=4/4 vocab=10 sp=4")
    seen = harness_pool.run(case, "native-gather", traced=True)
    assert isinstance(seen, Assembly), seen
    assert seen.trace["ids"].values.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert seen.trace["labels"].values.tolist() == [2, 3, 4, 5, 6, 7, 1]
    owners = seen.trace["ids"].owners
    assert owners is not None
    assert owners.tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert seen.local_rows == (2, 2, 2, 2)
