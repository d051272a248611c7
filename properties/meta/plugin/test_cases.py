"""What `harness_cases` draws, without a session."""

import re
from dataclasses import fields
from inspect import signature
from typing import Any

import pytest

from harness.campaign.case_source import NothingToDraw
from harness.campaign.request import Request
from harness.case import Case
from harness.generation import cases, generate
from harness.plugin.cases import never_drawn, of
from properties.helpers.places import ROOT

PAGE = (ROOT / "docs" / "pytest.md").read_text()


def drawn(limits: str = "", **options: Any) -> list[Case]:
    """Some of four ranks."""
    return generate(of("mine", limits, 4, **{"against": "plain", **options}), 30, 0)


def values(drawn: list[Case], name: str) -> set[Any]:
    return {getattr(case, name) for case in drawn}


def test_it_takes_whatever_check_asks_of_cases_and_the_page_lists_all_it_takes() -> None:
    of_check = {field.name for field in fields(Request)} - {
        *("candidates", "count", "seed", "named", "rare_sps", "rare_dps", "keep_going"),
    }
    takes = {*signature(cases).parameters, *signature(of).parameters} - {"limits", "ranks"}
    takes = {name for name in takes if name not in ("options", "draw")}
    assert of_check <= takes
    assert set(re.findall(r"^\| `(\w+)` \| (?:`--|\|)", PAGE, re.MULTILINE)) == takes


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
        # Whatever has an option of its own may be stated as well.
        ({"stated": ("dtype=fp32",)}, "dtype", {"fp32"}),
        ({"stated": ("sp=1,4",)}, "sp", {1, 4}),
        ({"against": "self"}, "sp", {2, 3, 4}),
        ({}, "dtype", {"fp64", "fp32"}),
    ],
)
def test_each_option_bounds_what_is_drawn(
    option: dict[str, Any], field: str, allowed: set[Any]
) -> None:
    assert values(drawn(**option), field) == allowed


def test_the_limits_of_a_candidate_bound_what_is_drawn_as_well() -> None:
    some = drawn("dtype=fp32,bf16 loss=token-mean steps=1 ranks=all", stated=("layers=2",))
    assert values(some, "dtype") == {"fp32"}
    assert values(some, "loss") == {"token-mean"}
    assert values(some, "steps") == {1}
    assert values(some, "layers") == {2}
    assert values(some, "ranks") == {4}


@pytest.mark.parametrize(
    ("limits", "option", "said"),
    [
        ("dtype=bf16", {}, "limits=dtype=bf16: dtype=bf16 is nothing that was asked for"),
        ("", {"stated": ("windows=none",)}, "windows=none: a case has no such field"),
        ("", {"against": "self", "sps": (1,)}, "sp 1 is what against='self' compares with"),
    ],
)
def test_what_cannot_be_drawn_is_told_at_once(
    limits: str, option: dict[str, Any], said: str
) -> None:
    with pytest.raises(NothingToDraw if "windows" not in said else ValueError, match=said):
        drawn(limits, **option)


def test_a_value_that_was_named_and_cannot_be_drawn_is_told() -> None:
    sp_4, sp_8 = "a sequence over sp 4", "a sequence over sp 8"
    assert never_drawn("", 4, sps=(1, 2, 4, 8)) == [sp_8]
    assert never_drawn("loss=token-mean sp=1,2", 8, sps=(1, 2, 4)) == [sp_4]
    assert never_drawn("sp=1", 4) == []
    assert never_drawn("", 4, sps=(2, 4), dps=(2,)) == [sp_4]
    assert never_drawn("", 4, sps=(2, 4), max_ranks=2) == [sp_4]
    assert never_drawn("sp=1,2", 4, stated=("sp=2,4",)) == [sp_4]
    assert never_drawn("", 4, dps=(1, 8)) == ["dp=8"]
    assert never_drawn("dtype=fp64 ranks=all", 4, dtypes=("fp64", "bf16")) == ["dtype=bf16"]
    assert never_drawn("steps=1 tied=0", 4, stated=("steps=1,2", "tied=0,1")) == [
        "steps=2",
        "tied=True",
    ]
