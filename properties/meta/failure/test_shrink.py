"""Shrinking makes a case as small as its failure allows, whatever made the case."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.case import Case, parse
from harness.compare import Comparison, Verdict, fault_comparison
from harness.compare.columns import BatchColumn
from harness.failure.shrink import shrink, size, smaller
from harness.generation import cases
from harness.trace import Fault, Kind
from properties.helpers.comparisons import changed

LARGE = parse(
    "case/1 rows=5:10110,7:1111111:left,3:111,9:101010101 heads=8/4 layers=3 vocab=32 sp=4 dp=2 "
    "micro=2 steps=2 kernel=sdpa window=3 dtype=bf16 seed=77 loss=row-mean checkpoint=1 pad=3"
)
ON_ONE_RANK = replace(LARGE, sp=1)
# Two tokens in the middle of the last row.
PAIR = LARGE.ids_of(3)[4:6]
Fails = Callable[[Case], bool]


def has_pair(ids: tuple[int, ...]) -> bool:
    return any(ids[t : t + 2] == PAIR for t in range(len(ids)))


def judge_by(case: Case, fails: Fails) -> Comparison:
    verdict = Verdict.DIVERGED if fails(case) else Verdict.WITHIN
    return Comparison(case=case, candidate="planted", verdict=verdict)


def smallest_case(case: Case, fails: Fails) -> Case:
    shrunk = shrink(judge_by(case, fails), lambda other: judge_by(other, fails))
    assert shrunk.finished
    assert fails(shrunk.smallest.case)
    return shrunk.smallest.case


@pytest.mark.parametrize(
    ("fails", "smallest"),
    [
        (lambda _: True, "rows=1:1 heads=1/1 vocab=2 sp=1 dim=2"),
        (lambda case: case.heads > 1, "rows=1:1 heads=2/1 vocab=2 sp=1 dim=2"),
        (lambda case: case.dp > 1, "rows=1:1,1:1 heads=1/1 vocab=2 sp=1 dp=2 dim=2"),
        (lambda case: case.layers > 1, "rows=1:1 heads=1/1 layers=2 vocab=2 sp=1 dim=2"),
        (lambda case: case.steps > 1, "rows=1:1 heads=1/1 vocab=2 sp=1 dim=2 steps=2"),
        (lambda case: case.micro_batches > 1, "rows=1:1,1:1 heads=1/1 vocab=2 sp=1 dim=2 micro=2"),
        (lambda case: case.kv_heads < case.heads, "rows=1:1 heads=2/1 vocab=2 sp=1 dim=2"),
        (lambda case: case.window == 3, "rows=1:1 heads=1/1 vocab=2 sp=1 dim=2 window=3"),
        (lambda case: case.pad_id == 3, "rows=1:1 heads=1/1 vocab=4 sp=1 dim=2 pad=3"),
        (lambda case: case.vocab > 8, "rows=1:1 heads=1/1 vocab=9 sp=1 dim=2"),
        (
            lambda case: any("101" in row.mask for row in case.rows),
            "rows=3:101 heads=1/1 vocab=2 sp=1 dim=2",
        ),
        (
            lambda case: any(row.side == "left" and len(row) > 2 for row in case.rows),
            "rows=3:111:left heads=1/1 vocab=2 sp=1 dim=2",
        ),
        (
            lambda case: sum("0" in row.mask for row in case.rows) > 1,
            "rows=1:0,1:0 heads=1/1 vocab=2 sp=1 dim=2",
        ),
        (
            lambda case: any(has_pair(case.ids_of(r)) for r in range(len(case.rows))),
            f"rows=2:11 ids=[{PAIR[0]},{PAIR[1]}] heads=1/1 vocab={max(PAIR) + 1} sp=1 dim=2",
        ),
    ],
)
def test_the_smallest_case_has_only_what_the_failure_needs(fails: Fails, smallest: str) -> None:
    assert smallest_case(ON_ONE_RANK, fails) == parse(f"case/1 {smallest} dtype=bf16")


@pytest.mark.parametrize(
    ("is_drawn", "needed", "left"),
    [
        (True, {"drawn"}, "drawn"),
        (True, {"drawn", "signs"}, "signs"),
        (True, {"drawn", "signs", "one"}, "one"),
        (True, {"drawn", "signs", "one", "zero"}, "zero"),
        (False, {"drawn", "signs", "one", "zero"}, "drawn"),
    ],
)
def test_drawn_columns_become_as_plain_as_the_failure_allows(
    is_drawn: bool, needed: set[str], left: str
) -> None:
    column = BatchColumn("gains", is_drawn=is_drawn, rows=())

    def judge(case: Case) -> Comparison:
        return changed(judge_by(case, lambda case: case.columns in needed), columns=(column,))

    assert shrink(judge(ON_ONE_RANK), judge).smallest.case.columns == left


@given(case=cases(dtypes=("fp64", "bf16")), has_drawn=st.booleans())
def test_passes_propose_only_valid_cases_that_are_smaller(case: Case, has_drawn: bool) -> None:
    for other in smaller(case, has_drawn=has_drawn):
        assert size(other) < size(case)
        assert parse(str(other)) == other


@given(case=cases(), salt=st.integers())
def test_shrinking_ends_where_no_smaller_case_fails(case: Case, salt: int) -> None:
    def fails(other: Case) -> bool:
        return other == case or hash((str(other), salt)) % 3 == 0

    small = smallest_case(case, fails)
    allowed = (other for other in smaller(small) if other.sp > 1 or case.sp == 1)
    assert not any(map(fails, allowed))


def test_a_smaller_case_with_another_fault_is_not_taken() -> None:
    def judge(case: Case) -> Comparison:
        kind = Kind.HUNG if case.sp == 4 else Kind.RAISED
        return fault_comparison(case, "planted", Fault(kind=kind, summary=""))

    shrunk = shrink(judge(LARGE), judge)
    assert shrunk.smallest.case.sp == 4
    assert shrunk.smallest.case.tokens == 1


def test_without_time_the_failure_itself_is_the_smallest() -> None:
    judged: list[Case] = []

    def judge(case: Case) -> Comparison:
        judged.append(case)
        return judge_by(case, lambda _: True)

    shrunk = shrink(judge(LARGE), judge, seconds=0.0)
    assert (shrunk.smallest.case, shrunk.tried, shrunk.finished) == (LARGE, 0, False)
    assert len(judged) == 1


def test_a_shared_sequence_stays_shared_and_the_dtype_stays() -> None:
    small = smallest_case(LARGE, lambda _: True)
    assert small == parse("case/1 rows=1:1 heads=2/1 vocab=2 sp=2 dim=2 dtype=bf16")


def test_no_case_is_tried_twice() -> None:
    judged: list[Case] = []

    def judge(case: Case) -> Comparison:
        judged.append(case)
        return judge_by(case, lambda case: case.sp > 1 and case.tokens > 3)

    shrunk = shrink(judge(LARGE), judge)
    assert len(judged) == len(set(judged)) == shrunk.tried + 1


def test_a_candidate_that_fails_only_now_and_then_is_still_a_failure() -> None:
    verdicts = itertools.cycle([Verdict.DIVERGED, Verdict.EQUAL, Verdict.EQUAL])

    def judge(case: Case) -> Comparison:
        return Comparison(case=case, candidate="moody", verdict=next(verdicts))

    assert shrink(judge(LARGE), judge).smallest.verdict is Verdict.DIVERGED
