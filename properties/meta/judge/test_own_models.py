"""A mixture of experts and latent attention, of which we have no model, judged by themselves."""

from collections.abc import Iterator

import pytest

from harness.against import ITSELF
from harness.case import Dtype
from harness.compare import Comparison, Verdict
from harness.failure.smallest import smallest
from harness.generation import cases, generate
from harness.judge import Session
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.judging import evaluate_all
from properties.helpers.places import PLANTED

RIGHT = (f"{PLANTED / 'mixtral.py'}:MIXTRAL", f"{PLANTED / 'mla.py'}:MLA")
# As they are planted there: to import a model of transformers takes seconds.
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
# What these steps do not do.
STATED = ("window=none", "steps=1", "checkpoint=0")


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4) as pool:
        yield pool


def judged(
    candidate: str, count: int, pool: RankPool, dtype: Dtype = "fp32"
) -> Iterator[Comparison]:
    drawn = cases(sps=(2, 4), max_ranks=4, dtypes=(dtype,), losses=("token-mean",), stated=STATED)
    jobs = ((case, candidate) for case in generate(drawn, count, 0))
    yield from evaluate_all(jobs, pool, against=ITSELF)


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.parametrize("candidate", RIGHT)
def test_a_right_step_of_any_model_passes(candidate: str, count: int, pool: RankPool) -> None:
    seen = list(judged(candidate, count, pool))
    assert len(seen) == count
    for comparison in seen:
        assert comparison.verdict.passed, explain(comparison)


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, pytest.param(400, marks=pytest.mark.long)])
def test_a_right_mixture_of_experts_is_not_blamed_in_bf16(count: int, pool: RankPool) -> None:
    for comparison in judged(RIGHT[0], count, pool, "bf16"):
        assert not comparison.verdict.failed, explain(comparison)


def test_there_are_ten_faults() -> None:
    assert len(set(FAULTS)) == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "candidate",
    [
        fault if number % 5 < 2 else pytest.param(fault, marks=pytest.mark.long)
        for number, fault in enumerate(FAULTS)
    ],
)
def test_what_is_wrong_in_it_is_found(candidate: str, pool: RankPool) -> None:
    assert first_failure(candidate, pool).verdict is Verdict.DIVERGED


@pytest.mark.long
@pytest.mark.parametrize("candidate", FAULTS)
def test_and_shrinks_to_two_rows_of_a_token_or_two_for_each_rank(
    candidate: str, pool: RankPool
) -> None:
    small = smallest(first_failure(candidate, pool), Session(pool)).smallest
    assert small.verdict is Verdict.DIVERGED
    assert len(small.case.rows) <= 2
    assert small.case.tokens <= small.case.sp + 2


def first_failure(candidate: str, pool: RankPool) -> Comparison:
    return next(seen for seen in judged(candidate, 10, pool) if seen.verdict.failed)
