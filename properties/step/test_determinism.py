"""A case has one result, whenever it runs and whatever the ranks did before."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given

from harness.case import Case, parse
from harness.compare import identical
from harness.generation import cases
from harness.ranks.pool import RankPool
from properties.helpers.asking import DIALECTS, fewer_examples, planted_drift, run_all

# Two models and two batches that a step with stale state could confuse.
CASE = parse("case/1 rows=5:11111,3:101 heads=4/2 vocab=16 sp=2")
OTHER = parse("case/1 rows=5:10001,3:111 heads=4/4 vocab=16 sp=2 seed=1")


@pytest.fixture(scope="module")
def fresh_pool(harness_pool: RankPool) -> Iterator[RankPool]:
    """A pool of the same kind whose ranks have not run a case yet."""
    with RankPool(2, harness_pool.placement) as pool:
        yield pool


def differs_when_repeated(case: Case, other: Case, candidate: str, pool: RankPool) -> str:
    """Return where a case differs when it runs again, at once or after another case, or ""."""
    jobs = [(run, candidate) for run in (case, case, other, case)]
    first, again, _, later = (run.trace for run in run_all(pool, jobs, traced=True))
    return identical(first, again) or identical(first, later)


def differs_when_reordered(
    cases: Sequence[Case], candidate: str, pool: RankPool, fresh_pool: RankPool
) -> str:
    """Return where a case differs on fresh ranks that run the cases in reverse order, or ""."""
    in_order = run_all(pool, [(case, candidate) for case in cases])
    in_reverse = run_all(fresh_pool, [(case, candidate) for case in reversed(cases)])
    pairs = zip(in_order, reversed(in_reverse), strict=True)
    return next(filter(None, (identical(run.trace, twin.trace) for run, twin in pairs)), "")


@pytest.mark.slow
@pytest.mark.parametrize("candidate", DIALECTS)
@fewer_examples
@given(case=cases(max_ranks=4), other=cases(max_ranks=4))
def test_a_repeated_case_is_equal_to_the_last_bit(
    harness_pool: RankPool, candidate: str, case: Case, other: Case
) -> None:
    assert differs_when_repeated(case, other, candidate, harness_pool) == ""


@pytest.mark.slow
@pytest.mark.parametrize("candidate", DIALECTS)
def test_earlier_cases_do_not_change_a_case(
    harness_pool: RankPool, fresh_pool: RankPool, candidate: str
) -> None:
    assert differs_when_repeated(CASE, OTHER, candidate, harness_pool) == ""
    assert differs_when_reordered([CASE, OTHER], candidate, harness_pool, fresh_pool) == ""


@pytest.mark.parametrize("candidate", [planted_drift("OLD_COUNT"), "mutants.B138"])
def test_repeating_a_case_finds_state_that_outlives_it(
    harness_pool: RankPool, candidate: str
) -> None:
    assert "are not identical" in differs_when_repeated(CASE, OTHER, candidate, harness_pool)


@pytest.mark.slow
def test_only_another_order_finds_state_that_is_kept_for_ever(
    harness_pool: RankPool, fresh_pool: RankPool
) -> None:
    candidate = "mutants.B48"
    assert differs_when_repeated(CASE, OTHER, candidate, harness_pool) == ""
    found = differs_when_reordered([CASE, OTHER], candidate, harness_pool, fresh_pool)
    assert found.startswith("nll: ")
