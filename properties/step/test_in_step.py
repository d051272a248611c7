"""Ranks enter the same collectives in the same order, also where no backend minds."""

import re

import pytest
from hypothesis import given

from harness.case import Case, parse
from harness.compare import Verdict
from harness.generation import cases
from harness.ranks.pool import RankPool
from harness.trace import Kind
from properties.helpers.asking import DIALECTS, ask, few, mutant
from properties.helpers.judging import evaluate, evaluate_traced

CASE = parse("case/1 rows=5:11111,3:101 heads=4/2 vocab=16 sp=2 dp=2")


def parted(case: Case, candidate: str, pool: RankPool, *, traced: bool = True) -> str:
    """Where ranks part in what they enter, or nothing."""
    (assembly,) = ask(pool, [(case, candidate)], traced=traced)
    assert case.sp == 1 or not assembly.silent
    return assembly.out_of_step


@pytest.mark.slow
@pytest.mark.parametrize("candidate", DIALECTS)
@few
@given(case=cases(max_ranks=4))
def test_all_ranks_enter_the_same_collectives(
    harness_pool: RankPool, candidate: str, case: Case
) -> None:
    assert parted(case, candidate, harness_pool) == ""


def test_a_step_longer_than_torchs_log_is_in_step_as_well(
    harness_pool: RankPool,
) -> None:
    long = "case/1 rows=3:111,3:111,3:111,3:111 heads=4/2 layers=5 vocab=16 sp=2 micro=4 steps=2"
    assert parted(parse(long), "native-local", harness_pool) == ""


GATHERED = r"collective #\d+ on world of 2x2, ranks 0,1,2,3: rank 0 entered all_gather of shape "


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("OTHER_SHAPE", GATHERED + r"\[\]; rank 1 entered all_gather of shape \[1\]; "),
        ("OTHER_DTYPE", GATHERED + r"\[\] in int64; rank 1 .* \[\] in float64; "),
        (
            "CROSSED",
            r"rank 0 entered all_reduce #\d+ on world .* before all_reduce #\d+ on sp .*; rank 1",
        ),
    ],
)
def test_ranks_that_part_and_do_not_hang_are_found(
    harness_pool: RankPool, name: str, told: str
) -> None:
    assert re.match(told, parted(CASE, mutant(name), harness_pool))


def test_ranks_out_of_step_are_a_fault_where_everything_else_is_right(
    harness_pool: RankPool,
) -> None:
    comparison = evaluate_traced(CASE, mutant("CROSSED"), harness_pool)
    assert comparison.verdict is Verdict.FAULT
    assert comparison.fault is not None
    assert comparison.fault.kind is Kind.OUT_OF_STEP
    assert not any(result.wrong for result in comparison.keys)


@pytest.mark.parametrize("traced", [False, True])
def test_four_ranks_that_wait_in_a_circle_are_found_and_named(
    harness_pool: RankPool, *, traced: bool
) -> None:
    told = parted(CASE, mutant("IN_CIRCLE"), harness_pool, traced=traced)
    of_each = r"rank {} entered all_?reduce #\d+ on {} of 2x2, .* before all_?reduce #\d+ on {} .*"
    orders = [("dp", "sp"), ("sp", "dp"), ("sp", "dp"), ("dp", "sp")]
    assert re.fullmatch(
        "; ".join(of_each.format(rank, *order) for rank, order in enumerate(orders)), told
    )


def test_every_run_knows_the_order_and_is_a_fault(harness_pool: RankPool) -> None:
    for name in ("CROSSED", "IN_CIRCLE"):
        comparison = evaluate(CASE, mutant(name), harness_pool)
        assert comparison.fault is not None
        assert comparison.fault.kind is Kind.OUT_OF_STEP


def test_only_a_traced_run_pays_for_the_logs_and_knows_shapes(harness_pool: RankPool) -> None:
    assert parted(CASE, mutant("OTHER_SHAPE"), harness_pool, traced=False) == ""


@pytest.mark.slow
@pytest.mark.parametrize("candidate", DIALECTS)
def test_what_a_right_step_enters_is_in_order_where_nothing_is_traced(
    harness_pool: RankPool, candidate: str
) -> None:
    for wrapper in ("none", "ddp", "fsdp"):
        case = parse(f"case/1 rows=5:11111,3:101,4:1111,2:11 sp=2 dp=2 micro=2 wrapper={wrapper}")
        assert parted(case, candidate, harness_pool, traced=False) == ""
