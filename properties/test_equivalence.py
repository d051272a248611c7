"""The main property: sequence-parallel training equals plain training."""

from itertools import cycle

import pytest
from hypothesis import given

from harness.candidates import locate
from harness.case import Case, Dtype, parse
from harness.compare import Verdict
from harness.generation import cases, draw_list
from harness.generation.situations import SITUATIONS, situations_of
from harness.generation.strategies import steer
from harness.plugin import Evaluate
from harness.ranks.pool import RankPool
from harness.report import explain
from harness.trace import Assembly
from properties.helpers.judging import evaluate_all
from properties.helpers.places import ROOT

DIALECTS = ("native-gather", "native-local")
WATCHED = f"{ROOT / 'properties' / 'planted' / 'around.py'}:WATCHED"


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("candidate", DIALECTS)
@given(case=cases(max_ranks=4))
def test_fp64_holds_to_1e12_of_every_tensor(
    harness_evaluate: Evaluate, candidate: str, case: Case
) -> None:
    steer(case)
    comparison = harness_evaluate(case, candidate)
    assert comparison.verdict.passed, explain(comparison)
    assert comparison.measured.elements


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "count"),
    [
        ("fp32", 40),
        ("bf16", 120),
        ("fp16", 40),
        pytest.param("fp32", 1000, marks=pytest.mark.long),
        pytest.param("bf16", 1000, marks=pytest.mark.long),
    ],
)
def test_lower_precisions_hold_inside_derived_budgets_in_all_situations(
    harness_pool: RankPool, dtype: Dtype, count: int
) -> None:
    batch = draw_list(cases(max_ranks=4, dtypes=(dtype,)), count, 0)
    met = {name for case in batch for name in situations_of(case)}
    # The missing situation needs six ranks; `metamorphic/test_more_ranks.py` has it.
    assert count < 120 or met == set(SITUATIONS) - {"dp and sp above 1, and different"}
    for comparison in evaluate_all(zip(batch, cycle(DIALECTS), strict=False), harness_pool):
        assert comparison.verdict.passed, explain(comparison)
        assert comparison.measured.elements


@pytest.mark.parametrize("candidate", DIALECTS)
def test_a_kernel_that_cannot_run_here_is_unsupported_and_not_passed(
    harness_evaluate: Evaluate, candidate: str
) -> None:
    comparison = harness_evaluate(parse("case/1 rows=2:11 kernel=flash"), candidate)
    assert comparison.verdict is Verdict.UNSUPPORTED
    assert not comparison.verdict.passed
    assert "kernel=flash" in comparison.reason


@pytest.mark.parametrize(
    ("checkpoint", "passes"),
    # Forward and backward; recomputed layers exchange again.
    [("checkpoint=0", 2), ("checkpoint=1", 3)],
)
def test_exchanging_q_k_and_v_takes_one_collective_and_the_way_back_another(
    harness_pool: RankPool, checkpoint: str, passes: int
) -> None:
    case = parse(f"case/1 rows=5:11111 heads=4/4 layers=3 sp=2 {checkpoint}")
    outcome = harness_pool.run(case, locate(WATCHED), traced=True)
    assert isinstance(outcome, Assembly)
    exchanges = outcome.trace["all_to_all in Double"].values
    assert exchanges == 2 * case.layers * passes
    # Ranks send nothing but queries, keys, values and outputs; half of these stay where they are.
    padded_tokens, bytes_per_token = 6, 4 * case.heads * case.head_dim * 8 // case.sp
    assert sum(outcome.sent) == padded_tokens * bytes_per_token * case.layers * passes


def test_the_notebooks_batch_is_rolled_padded_and_cut_as_in_the_notebook(
    harness_pool: RankPool,
) -> None:
    case = parse("case/1 rows=4:1111,3:111 ids=[1,2,3,4],[5,6,7] heads=4/4 vocab=10 sp=4")
    outcome = harness_pool.run(case, locate("native-gather"), traced=True)
    assert isinstance(outcome, Assembly), outcome
    assert outcome.trace["ids"].values.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert outcome.trace["labels"].values.tolist() == [2, 3, 4, 5, 6, 7, 1]
    owners = outcome.trace["ids"].owners
    assert owners is not None
    assert owners.tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert outcome.local_rows == (2, 2, 2, 2)
