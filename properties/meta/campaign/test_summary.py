"""A tally counts outcomes, and errors as shares of what was allowed."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.campaign.tally import BUCKETS, MOST_SILENT, Histogram, Tally
from harness.case import parse
from harness.compare import Comparison, KeyResult, Verdict
from properties.helpers.comparisons import changed, comparison_with

EQUAL = Comparison(case=parse("case/1 rows=2:11"), candidate="a", verdict=Verdict.EQUAL)


@given(st.lists(st.floats(0, 1)))
def test_a_histogram_counts_each_error_at_the_first_bound_that_is_not_smaller(
    errors: list[float],
) -> None:
    histogram = Histogram()
    for error in errors:
        histogram.add(error)
    assert histogram.most == max(errors, default=0.0)
    for n, bound in enumerate(BUCKETS):
        assert sum(histogram.counts[: n + 1]) == sum(error <= bound for error in errors)


def test_an_equal_case_uses_no_budget_and_only_passing_cases_are_in_the_histogram() -> None:
    tally, case = Tally(), parse("case/1 rows=2:11")
    for verdict in (Verdict.EQUAL, Verdict.DIVERGED, Verdict.UNSUPPORTED):
        keys = (KeyResult("loss", 1, 0, 0.9),)
        tally.add(comparison_with(case=case, candidate="a", verdict=verdict, keys=keys))
    assert tally.used == {"fp64": Histogram([1, 0, 0, 0, 0, 0, 0], 0.0)}


@pytest.mark.parametrize(
    ("verdicts", "lacking", "worst_of_all"),
    [
        ({"UNSUPPORTED": 9, "WITHIN": 1}, 0, "WITHIN"),
        ({"UNSUPPORTED": 9, "WITHIN": 1}, 1, "FAULT"),
        ({"UNSUPPORTED": 3, "DIVERGED": 1}, 1, "DIVERGED"),
        ({"UNSUPPORTED": 3}, 0, "FAULT"),
        ({}, 0, "FAULT"),
    ],
)
def test_a_candidate_that_lacks_cases_is_a_fault_unless_it_diverged(
    verdicts: dict[str, int], lacking: int, worst_of_all: str
) -> None:
    assert Tally(verdicts=Counter(verdicts), lacking=lacking).verdict == worst_of_all


@pytest.mark.parametrize(
    ("shared", "silent", "verdict"),
    [
        (0, 0, "EQUAL"),
        (MOST_SILENT, MOST_SILENT, "EQUAL"),
        (MOST_SILENT + 1, MOST_SILENT + 1, "FAULT"),
        (MOST_SILENT + 1, MOST_SILENT, "EQUAL"),
    ],
)
def test_many_cases_without_traffic_between_ranks_are_a_fault(
    shared: int, silent: int, verdict: str
) -> None:
    tally = Tally()
    for number in range(MOST_SILENT + 1):
        case = parse(f"case/1 rows=2:11 sp={2 if number < shared else 1}")
        tally.add(changed(EQUAL, case=case, silent=number < silent))
    assert (tally.shared, tally.silent, tally.verdict) == (shared, silent, verdict)
