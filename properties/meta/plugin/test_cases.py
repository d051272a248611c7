"""The strategies behind the fixture `harness_cases`, without a session or ranks."""

import re
from dataclasses import fields
from inspect import signature
from typing import Any

import pytest

from harness.campaign.case_source import NothingToDraw
from harness.campaign.request import Request
from harness.case import Case
from harness.generation import cases, draw_list
from harness.plugin.cases import impossible_values, strategy_for
from properties.helpers.places import ROOT

PAGE = (ROOT / "docs" / "pytest.md").read_text()


def draw(limits: str = "", **options: Any) -> list[Case]:
    """Draw some cases for four ranks."""
    return draw_list(strategy_for("mine", limits, 4, **{"against": "plain", **options}), 30, 0)


def values(drawn: list[Case], name: str) -> set[Any]:
    return {getattr(case, name) for case in drawn}


def test_harness_cases_takes_every_option_of_check_and_the_page_lists_all_its_options() -> None:
    of_check = {field.name for field in fields(Request)} - {
        *("candidates", "count", "seed", "named", "rare_sps", "rare_dps", "keep_going", "up_to"),
    }
    parameters = {*signature(cases).parameters, *signature(strategy_for).parameters}
    parameters -= {"limits", "ranks", "options", "draw"}
    assert of_check <= parameters
    assert set(re.findall(r"^\| `(\w+)` \| (?:`--|\|)", PAGE, re.MULTILINE)) == parameters


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "field", "allowed"),
    [
        ({"sps": (4,)}, "sp", {4}),
        ({"dps": (2,)}, "dp", {2}),
        ({"dtypes": ("bf16",)}, "dtype", {"bf16"}),
        ({"losses": ("row-mean",)}, "loss", {"row-mean"}),
        ({"kernels": ("varlen",)}, "kernel", {"varlen"}),
        ({"wrappers": ("ddp", "fsdp")}, "wrapper", {"ddp", "fsdp"}),
        ({"stated": ("window=none", "layers=1,2")}, "window", {None}),
        # A field that has an option of its own may be stated as well.
        ({"stated": ("dtype=fp32",)}, "dtype", {"fp32"}),
        ({"stated": ("sp=1,4",)}, "sp", {1, 4}),
        ({"against": "self"}, "sp", {2, 3, 4}),
        # Plain training of a recipe takes one step, with the recipe's own loss.
        ({"against": "mine.py:grpo"}, "steps", {1}),
        ({"against": "mine.py:grpo"}, "loss", {"token-mean"}),
        ({}, "dtype", {"fp64", "fp32"}),
    ],
)
def test_each_option_bounds_the_values_of_its_field(
    option: dict[str, Any], field: str, allowed: set[Any]
) -> None:
    assert values(draw(**option), field) == allowed


def test_the_limits_of_a_candidate_bound_the_values_of_the_cases() -> None:
    drawn = draw("dtype=fp32,bf16 loss=token-mean steps=1 ranks=all", stated=("layers=2",))
    assert values(drawn, "dtype") == {"fp32"}
    assert values(drawn, "loss") == {"token-mean"}
    assert values(drawn, "steps") == {1}
    assert values(drawn, "layers") == {2}
    # Four ranks make no mesh with sp 3.
    assert values(drawn, "ranks") == {3, 4}


def test_a_candidate_that_needs_all_ranks_shares_sequences_over_each_sp_unless_dps_are_named() -> (
    None
):
    options: list[dict[str, Any]] = [{}, {"dps": (1, 2)}]
    eight = [
        draw_list(strategy_for("mine", "ranks=all", 8, against="plain", **named), 30, 0)
        for named in options
    ]
    assert [{(case.sp, case.dp) for case in drawn} for drawn in eight] == [
        {(2, 4), (3, 2), (4, 2)},
        {(2, 2), (3, 2), (4, 1), (4, 2)},
    ]


@pytest.mark.parametrize(
    ("limits", "option", "message"),
    [
        ("dtype=bf16", {}, "limits=dtype=bf16: dtype=bf16 is nothing that was asked for"),
        ("", {"stated": ("windows=none",)}, "windows=none: a case has no such field"),
        ("", {"against": "self", "sps": (1,)}, "sp 1 is what against='self' compares with"),
    ],
)
def test_options_that_leave_no_case_raise_before_anything_is_drawn(
    limits: str, option: dict[str, Any], message: str
) -> None:
    error = ValueError if "windows" in message else NothingToDraw
    with pytest.raises(error, match=message):
        draw(limits, **option)


def test_named_values_that_the_ranks_or_the_limits_exclude_are_listed() -> None:
    sp_4, sp_8 = "a sequence over sp 4", "a sequence over sp 8"
    assert impossible_values("", 4, sps=(1, 2, 4, 8)) == [sp_8]
    assert impossible_values("loss=token-mean sp=1,2", 8, sps=(1, 2, 4)) == [sp_4]
    assert impossible_values("sp=1", 4) == []
    assert impossible_values("", 4, sps=(2, 4), dps=(2,)) == [sp_4]
    assert impossible_values("", 4, sps=(2, 4), max_ranks=2) == [sp_4]
    assert impossible_values("sp=1,2", 4, stated=("sp=2,4",)) == [sp_4]
    assert impossible_values("", 4, dps=(1, 8)) == ["dp=8"]
    assert impossible_values("dtype=fp64 ranks=all", 4, dtypes=("fp64", "bf16")) == ["dtype=bf16"]
    assert impossible_values("steps=1 tied=0", 4, stated=("steps=1,2", "tied=0,1")) == [
        "steps=2",
        "tied=True",
    ]
