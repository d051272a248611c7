"""Ranks enter the same collectives in the same order, even where no backend requires it."""

import re

import pytest
from hypothesis import given

from harness.case import Case, parse
from harness.compare import Verdict
from harness.generation import cases
from harness.ranks.pool import RankPool
from harness.trace import Kind
from properties.helpers.asking import DIALECTS, fewer_examples, planted_step, run_all
from properties.helpers.judging import evaluate, evaluate_traced

CASE = parse("case/1 rows=5:11111,3:101 heads=4/2 vocab=16 sp=2 dp=2")


def first_disagreement(case: Case, candidate: str, pool: RankPool, *, traced: bool = True) -> str:
    """Return where the collectives of the ranks first differ, or ""."""
    (assembly,) = run_all(pool, [(case, candidate)], traced=traced)
    assert case.sp == 1 or not assembly.silent
    return assembly.out_of_step


@pytest.mark.slow
@pytest.mark.parametrize("candidate", DIALECTS)
@fewer_examples
@given(case=cases(max_ranks=4))
def test_all_ranks_enter_the_same_collectives(
    harness_pool: RankPool, candidate: str, case: Case
) -> None:
    assert first_disagreement(case, candidate, harness_pool) == ""


def test_a_step_longer_than_the_log_of_torch_is_in_step(
    harness_pool: RankPool,
) -> None:
    long = "case/1 rows=3:111,3:111,3:111,3:111 heads=4/2 layers=5 vocab=16 sp=2 micro=4 steps=2"
    assert first_disagreement(parse(long), "native-local", harness_pool) == ""


GATHERED = r"collective #\d+ on world of 2x2, ranks 0,1,2,3: rank 0 entered all_gather of shape "


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("OTHER_SHAPE", GATHERED + r"\[\]; rank 1 entered all_gather of shape \[1\]; "),
        ("OTHER_DTYPE", GATHERED + r"\[\] in int64; rank 1 .* \[\] in float64; "),
        (
            "CROSSED",
            r"rank 0 entered all_reduce #\d+ on world .* before all_reduce #\d+ on sp .*; rank 1",
        ),
    ],
)
def test_ranks_that_are_out_of_step_and_do_not_hang_are_found(
    harness_pool: RankPool, name: str, description: str
) -> None:
    assert re.match(description, first_disagreement(CASE, planted_step(name), harness_pool))


def test_ranks_out_of_step_are_a_fault_even_if_all_tensors_are_right(
    harness_pool: RankPool,
) -> None:
    comparison = evaluate_traced(CASE, planted_step("CROSSED"), harness_pool)
    assert comparison.verdict is Verdict.FAULT
    assert comparison.fault is not None
    assert comparison.fault.kind is Kind.OUT_OF_STEP
    assert not any(result.wrong for result in comparison.measured.keys)


@pytest.mark.parametrize("traced", [False, True])
def test_four_ranks_that_wait_in_a_circle_are_found_and_named(
    harness_pool: RankPool, *, traced: bool
) -> None:
    description = first_disagreement(CASE, planted_step("IN_CIRCLE"), harness_pool, traced=traced)
    line = r"rank {} entered all_?reduce #\d+ on {} of 2x2, .* before all_?reduce #\d+ on {} .*"
    orders = [("dp", "sp"), ("sp", "dp"), ("sp", "dp"), ("dp", "sp")]
    assert re.fullmatch(
        "; ".join(line.format(rank, *order) for rank, order in enumerate(orders)), description
    )


def test_an_untraced_run_finds_a_wrong_order_as_well(harness_pool: RankPool) -> None:
    for name in ("CROSSED", "IN_CIRCLE"):
        comparison = evaluate(CASE, planted_step(name), harness_pool)
        assert comparison.fault is not None
        assert comparison.fault.kind is Kind.OUT_OF_STEP


def test_only_a_traced_run_finds_wrong_shapes(harness_pool: RankPool) -> None:
    assert first_disagreement(CASE, planted_step("OTHER_SHAPE"), harness_pool, traced=False) == ""


@pytest.mark.slow
@pytest.mark.parametrize("candidate", DIALECTS)
def test_an_untraced_correct_step_is_in_step(harness_pool: RankPool, candidate: str) -> None:
    for wrapper in ("none", "ddp", "fsdp"):
        case = parse(f"case/1 rows=5:11111,3:101,4:1111,2:11 sp=2 dp=2 micro=2 wrapper={wrapper}")
        assert first_disagreement(case, candidate, harness_pool, traced=False) == ""
