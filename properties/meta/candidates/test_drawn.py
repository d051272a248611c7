"""A candidate is asked what it can answer, as far as it says what that is."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from harness.candidates.published.library import Published, libraries
from harness.case import Case, parse
from harness.conformance import Request
from harness.conformance.drawn import nearest, runnable, what_it_takes
from harness.generation import drawn

GOLDEN = "case/1 rows=4:1111,3:111 heads=2/2 layers=1 vocab=16 sp=2 dp=1 model=qwen2 seed=0"


@cache
def taking(name: str) -> tuple[Published, dict[str, list[Any]]]:
    library, key = name.split(".")
    candidate = Published(name, libraries()[library], key)
    return candidate, what_it_takes(candidate, 0)


@pytest.mark.slow
def test_what_it_states_is_drawn_and_nothing_else() -> None:
    candidate, takes = taking("twinkle.padded")
    assert (takes["dtype"], takes["loss"], takes["kernel"]) == (["fp32"], ["token-mean"], ["sdpa"])
    cases = list(runnable(candidate, takes, 2, 6, Request()))
    seen = {(case.dtype, case.loss, case.kernel, case.sp) for case in cases}
    assert seen == {("fp32", "token-mean", "sdpa", 2)}


def test_nothing_more_is_drawn_when_enough_can_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    candidate, takes = taking("twinkle.padded")
    so_far = list[Case]()

    def counted(*given: Any) -> Iterator[Case]:
        for case in drawn(*given):
            so_far.append(case)
            yield case

    monkeypatch.setattr("harness.conformance.drawn.drawn", counted)
    cases = list(runnable(candidate, takes, 2, 3, Request()))
    assert len(cases) == len(so_far)
    assert sum(candidate.supports(case) is None for case in cases) == 3


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("name", "loss", "asked"),
    [
        # It takes no mean of rows, nor the attention that a golden has unless it says otherwise.
        ("twinkle.padded", "row-mean", ("qwen2", "token-mean", "sdpa")),
        ("openrlhf.sft", "row-mean", ("qwen2", "token-mean", "eager")),
        # Of one micro-batch both means are the same, and it takes either.
        ("openrlhf.sft", "micro-mean", ("qwen2", "micro-mean", "eager")),
    ],
)
def test_a_golden_keeps_what_is_not_refused(name: str, loss: str, asked: tuple[str, ...]) -> None:
    candidate, takes = taking(name)
    golden = parse(f"{GOLDEN} loss={loss} dtype=fp32")
    assert nearest(golden, 4, candidate, takes) is None, "two heads are too few for four ranks"
    case = nearest(golden, 2, candidate, takes)
    assert case is not None
    assert candidate.supports(case) is None
    assert (case.model, case.loss, case.kernel) == asked
    assert case.rows == golden.rows
