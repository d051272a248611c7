"""A published candidate gets cases that it supports, as far as its limits say which these are."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from harness.candidates.published.library import Published, libraries
from harness.case import Case, parse
from harness.conformance import Request
from harness.conformance.drawn import draw_supported, nearest_variant, supported_values
from harness.generation import draw_cases

GOLDEN = "case/1 rows=4:1111,3:111 heads=2/2 layers=1 vocab=16 sp=2 dp=1 model=qwen2 seed=0"


@cache
def accepted_values(name: str) -> tuple[Published, dict[str, list[Any]]]:
    library, key = name.split(".")
    candidate = Published(name, libraries()[library], key)
    return candidate, supported_values(candidate, Request())


@pytest.mark.slow
def test_only_cases_within_the_stated_limits_are_drawn() -> None:
    candidate, values = accepted_values("twinkle.padded")
    assert (values["dtype"], values["loss"], values["kernel"]) == (
        ["fp32"],
        ["token-mean"],
        ["sdpa"],
    )
    cases = list(draw_supported(candidate, values, 2, 6, Request()))
    seen = {(case.dtype, case.loss, case.kernel, case.sp) for case in cases}
    assert seen == {("fp32", "token-mean", "sdpa", 2)}


@pytest.mark.slow
def test_drawing_stops_when_enough_cases_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    candidate, values = accepted_values("twinkle.padded")
    drawn_cases = list[Case]()

    def record_drawn(*arguments: Any) -> Iterator[Case]:
        for case in draw_cases(*arguments):
            drawn_cases.append(case)
            yield case

    monkeypatch.setattr("harness.conformance.drawn.draw_cases", record_drawn)
    cases = list(draw_supported(candidate, values, 2, 3, Request()))
    assert len(cases) == len(drawn_cases)
    assert sum(candidate.supports(case) is None for case in cases) == 3


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("name", "loss", "expected"),
    [
        # It supports neither row-mean nor eager attention, the kernel of a golden by default.
        ("twinkle.padded", "row-mean", ("qwen2", "token-mean", "sdpa")),
        ("openrlhf.sft", "row-mean", ("qwen2", "token-mean", "eager")),
        # With one micro-batch both means are the same, and it supports both.
        ("openrlhf.sft", "micro-mean", ("qwen2", "micro-mean", "eager")),
    ],
)
def test_a_golden_keeps_every_value_that_is_not_refused(
    name: str, loss: str, expected: tuple[str, ...]
) -> None:
    candidate, values = accepted_values(name)
    golden = parse(f"{GOLDEN} loss={loss} dtype=fp32")
    assert nearest_variant(golden, 4, candidate, values) is None, (
        "two heads are too few for four ranks"
    )
    case = nearest_variant(golden, 2, candidate, values)
    assert case is not None
    assert candidate.supports(case) is None
    assert (case.model, case.loss, case.kernel) == expected
    assert case.rows == golden.rows
