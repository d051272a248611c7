"""What is added up of a run: outcomes, and errors as shares of what was allowed."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.campaign.tally import BUCKETS, FEW, Histogram, Tally
from harness.case import parse
from harness.compare import Comparison, KeyResult, Verdict

EQUAL = Comparison(case=parse("case/1 rows=2:11"), candidate="a", verdict=Verdict.EQUAL)


@given(st.lists(st.floats(0, 1)))
def test_every_case_that_passed_is_counted_below_the_first_bound_that_holds_it(
    errors: list[float],
) -> None:
    histogram = Histogram()
    for error in errors:
        histogram.add(error)
    assert histogram.most == max(errors, default=0.0)
    for n, bound in enumerate(BUCKETS):
        assert sum(histogram.counts[: n + 1]) == sum(error <= bound for error in errors)


def test_what_is_equal_bit_by_bit_used_nothing_and_what_failed_is_not_counted() -> None:
    made, case = Tally(), parse("case/1 rows=2:11")
    for verdict in (Verdict.EQUAL, Verdict.DIVERGED, Verdict.UNSUPPORTED):
        keys = (KeyResult("loss", 1, 0, 0.9),)
        made.add(Comparison(case=case, candidate="a", verdict=verdict, keys=keys))
    assert made.used == {"fp64": Histogram([1, 0, 0, 0, 0, 0, 0], 0.0)}


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
def test_being_judged_on_too_few_cases_is_no_pass_and_hides_no_divergence(
    verdicts: dict[str, int], lacking: int, worst_of_all: str
) -> None:
    assert Tally(verdicts=Counter(verdicts), lacking=lacking).verdict == worst_of_all


@pytest.mark.parametrize(
    ("shared", "silent", "verdict"),
    [(0, 0, "EQUAL"), (FEW, FEW, "EQUAL"), (FEW + 1, FEW + 1, "FAULT"), (FEW + 1, FEW, "EQUAL")],
)
def test_many_cases_in_which_ranks_needed_nothing_of_each_other_are_no_pass(
    shared: int, silent: int, verdict: str
) -> None:
    made = Tally()
    for number in range(FEW + 1):
        case = parse(f"case/1 rows=2:11 sp={2 if number < shared else 1}")
        said = replace(EQUAL, case=case, silent=number < silent)
        made.add(said)
    assert (made.shared, made.silent, made.verdict) == (shared, silent, verdict)
