"""A candidate is asked what it can answer, as far as it says what that is."""

from functools import cache
from typing import Any

from harness.candidates.published.library import Published, libraries
from harness.case import parse
from harness.conformance import Request
from harness.conformance.drawn import nearest, runnable, what_it_takes

GOLDEN = "case/1 rows=4:1111,3:111 heads=2/2 layers=1 vocab=16 sp=2 dp=1 loss=row-mean seed=0"


@cache
def strict() -> tuple[Published, dict[str, list[Any]]]:
    """It states its dtype, its loss and its kernel."""
    candidate = Published("twinkle.padded", libraries()["twinkle"], "padded")
    return candidate, what_it_takes(candidate, 0)


def test_what_it_states_is_drawn_and_nothing_else() -> None:
    candidate, takes = strict()
    assert (takes["dtype"], takes["loss"]) == (["fp32"], ["token-mean"])
    drawn = list(runnable(candidate, takes, 2, 6, Request()))
    seen = {(case.dtype, case.loss, case.kernel, case.sp) for case in drawn}
    assert seen == {("fp32", "token-mean", "sdpa", 2)}


def test_no_more_are_drawn_than_are_run() -> None:
    candidate, takes = strict()
    drawn = runnable(candidate, takes, 2, 3, Request())
    assert sum(candidate.supports(case) is None for case in drawn) == 3


def test_a_golden_that_it_refuses_is_asked_with_what_it_takes() -> None:
    candidate, takes = strict()
    golden = parse(GOLDEN)
    assert candidate.supports(golden)
    assert nearest(golden, 4, candidate, takes) is None, "two heads are too few for four ranks"
    asked = nearest(golden, 2, candidate, takes)
    assert asked is not None
    assert candidate.supports(asked) is None
    assert asked.rows == golden.rows
