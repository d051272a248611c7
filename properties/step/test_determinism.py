"""A case has one answer, whenever it is asked for and whatever the ranks did before."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given

from harness.case import Case, parse
from harness.compare import identical
from harness.generation import cases
from harness.ranks.pool import RankPool
from properties.helpers.asking import DIALECTS, ask, drifting, few

# Two models and two batches that a step might take for one another.
CASE = parse("case/1 rows=5:11111,3:101 heads=4/2 vocab=16 sp=2")
OTHER = parse("case/1 rows=5:10001,3:111 heads=4/4 vocab=16 sp=2 seed=1")


@pytest.fixture(scope="module")
def fresh_pool(harness_pool: RankPool) -> Iterator[RankPool]:
    """Ranks of the same kind that have not seen a case yet."""
    with RankPool(2, harness_pool.placement) as pool:
        yield pool


def repeated(case: Case, other: Case, candidate: str, pool: RankPool) -> str:
    """Where a case comes out otherwise when it is run again, at once or after another one."""
    jobs = [(run, candidate) for run in (case, case, other, case)]
    first, again, _, later = (run.trace for run in ask(pool, jobs, traced=True))
    return identical(first, again) or identical(first, later)


def reordered(cases: Sequence[Case], candidate: str, pool: RankPool, fresh_pool: RankPool) -> str:
    """Where a case comes out otherwise on other ranks that took the cases from the last on."""
    one = ask(pool, [(case, candidate) for case in cases])
    other = ask(fresh_pool, [(case, candidate) for case in reversed(cases)])
    pairs = zip(one, reversed(other), strict=True)
    return next(filter(None, (identical(run.trace, twin.trace) for run, twin in pairs)), "")


@pytest.mark.slow
@pytest.mark.parametrize("candidate", DIALECTS)
@few
@given(case=cases(max_ranks=4), other=cases(max_ranks=4))
def test_the_same_case_again_is_the_same_to_the_last_bit(
    harness_pool: RankPool, candidate: str, case: Case, other: Case
) -> None:
    assert repeated(case, other, candidate, harness_pool) == ""


@pytest.mark.slow
@pytest.mark.parametrize("candidate", DIALECTS)
def test_what_ranks_did_first_does_not_matter(
    harness_pool: RankPool, fresh_pool: RankPool, candidate: str
) -> None:
    assert repeated(CASE, OTHER, candidate, harness_pool) == ""
    assert reordered([CASE, OTHER], candidate, harness_pool, fresh_pool) == ""


@pytest.mark.parametrize("candidate", [drifting("OLD_COUNT"), "mutants.B138"])
def test_what_outlives_a_case_is_found_when_it_comes_again(
    harness_pool: RankPool, candidate: str
) -> None:
    assert "are not identical" in repeated(CASE, OTHER, candidate, harness_pool)


@pytest.mark.slow
def test_what_is_kept_for_ever_is_found_in_another_order_only(
    harness_pool: RankPool, fresh_pool: RankPool
) -> None:
    candidate = "mutants.B48"
    assert repeated(CASE, OTHER, candidate, harness_pool) == ""
    told = reordered([CASE, OTHER], candidate, harness_pool, fresh_pool)
    assert told.startswith("nll: ")
