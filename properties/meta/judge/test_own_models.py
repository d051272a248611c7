"""Models that the harness does not have, a mixture of experts and latent attention, are judged.

Their reference is their own step at sp 1.
"""

from collections.abc import Iterator

import pytest

from harness.against import ITSELF
from harness.case import Dtype
from harness.compare import Comparison, Verdict
from harness.failure.smallest import shrink_and_confirm
from harness.generation import cases, draw_list
from harness.judge import Session
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.judging import evaluate_all
from properties.helpers.places import PLANTED

CORRECT = (f"{PLANTED / 'mixtral.py'}:MIXTRAL", f"{PLANTED / 'mla.py'}:MLA")
# The names are written out, because importing a model of transformers takes seconds.
FAULTS = [
    *(
        f"{PLANTED / 'mixtral.py'}:{name}"
        for name in (
            "LABELS_ROLLED_LOCALLY",
            "ROWS_COUNTED_LOCALLY",
            "KEY_VALUE_HEADS_REPEATED_IN_TURN",
            "ROUTER_LEFT_LOCAL",
            "EXPERTS_AVERAGED",
        )
    ),
    *(
        f"{PLANTED / 'mla.py'}:{name}"
        for name in (
            "POSITIONS_RESTARTED",
            "SEES_NEIGHBOURS",
            "MEAN_OF_MEANS",
            "VALUE_HEADS_DEALT",
            "ROTARY_KEY_OF_OWN_HEADS",
        )
    ),
]
# These steps support no other values.
STATED = ("window=none", "steps=1", "checkpoint=0")


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4) as pool:
        yield pool


def judge_drawn(
    candidate: str, count: int, pool: RankPool, dtype: Dtype = "fp32"
) -> Iterator[Comparison]:
    """Yield the comparisons of a candidate with itself on so many generated cases."""
    drawn = cases(sps=(2, 4), max_ranks=4, dtypes=(dtype,), losses=("token-mean",), stated=STATED)
    jobs = ((case, candidate) for case in draw_list(drawn, count, 0))
    yield from evaluate_all(jobs, pool, against=ITSELF)


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.parametrize("candidate", CORRECT)
def test_a_correct_step_of_any_model_passes(candidate: str, count: int, pool: RankPool) -> None:
    comparisons = list(judge_drawn(candidate, count, pool))
    assert len(comparisons) == count
    for comparison in comparisons:
        assert comparison.verdict.passed, explain(comparison)


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, pytest.param(400, marks=pytest.mark.long)])
def test_a_correct_mixture_of_experts_is_not_blamed_in_bf16(count: int, pool: RankPool) -> None:
    for comparison in judge_drawn(CORRECT[0], count, pool, "bf16"):
        assert not comparison.verdict.failed, explain(comparison)


def test_ten_faults_are_planted() -> None:
    assert len(set(FAULTS)) == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "candidate",
    [
        fault if number % 5 < 2 else pytest.param(fault, marks=pytest.mark.long)
        for number, fault in enumerate(FAULTS)
    ],
)
def test_a_planted_fault_diverges(candidate: str, pool: RankPool) -> None:
    assert first_failure(candidate, pool).verdict is Verdict.DIVERGED


@pytest.mark.long
@pytest.mark.parametrize("candidate", FAULTS)
def test_a_planted_fault_shrinks_to_two_rows_with_about_one_token_per_rank(
    candidate: str, pool: RankPool
) -> None:
    small = shrink_and_confirm(first_failure(candidate, pool), Session(pool)).smallest
    assert small.verdict is Verdict.DIVERGED
    assert len(small.case.rows) <= 2
    assert small.case.tokens <= small.case.sp + 2


def first_failure(candidate: str, pool: RankPool) -> Comparison:
    comparisons = judge_drawn(candidate, 10, pool)
    return next(comparison for comparison in comparisons if comparison.verdict.failed)
