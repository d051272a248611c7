"""A requirement that was not examined often enough is a fault, which names it."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from harness.campaign.case_source import CaseSource
from harness.campaign.closing import closing
from harness.campaign.coverage import AT_AN_EDGE, ENOUGH, Coverage
from harness.campaign.examine import empty_summary
from harness.campaign.request import Request
from harness.campaign.tally import Tally
from harness.case import Case, parse
from harness.cli import main
from harness.compare import Comparison, KeyResult, Verdict
from harness.conformance.examined import Examined
from harness.conformance.stage import Stage
from harness.engine.lot import WHOLE
from properties.helpers.comparisons import comparison_with
from properties.helpers.places import PLANTED

pytest_plugins = ["properties.helpers.own_pool"]

SHARED = parse("case/1 rows=4:1111 sp=2")
ALONE = replace(SHARED, sp=1)
KEYS = (KeyResult("grad.head", 4, 0, 0.0), KeyResult("grad.layers.1.attn.q", 4, 0, 0.0))
DEAD = (KEYS[0], replace(KEYS[1], zero=True))


def judged(case: Case, keys: tuple[KeyResult, ...] = KEYS, at_edge: int | None = 1) -> Comparison:
    return comparison_with(
        case=case, candidate="a", verdict=Verdict.EQUAL, keys=keys, at_edge=at_edge
    )


def lacks(required: list[Case], comparisons: list[Comparison]) -> list[str]:
    coverage = Coverage.of_cases(required)
    for comparison in comparisons:
        coverage.add(comparison)
    return list(coverage.lacks())


@pytest.mark.parametrize(
    ("asked", "enough"), [(1, 1), (4, 1), (5, 2), (4 * ENOUGH, ENOUGH), (400, ENOUGH)]
)
def test_a_quarter_of_the_drawn_cases_is_enough_and_one_less_is_not(
    asked: int, enough: int
) -> None:
    drawn = [SHARED] * asked
    assert lacks(drawn, [judged(SHARED)] * enough) == []
    few = lacks(drawn, [*[judged(SHARED)] * (enough - 1), judged(ALONE)])
    count = enough - 1 or "none"
    assert few == [
        f"{count} of {asked} cases with a sequence over sp 2",
        f"{count} of {asked} cases with a target whose label is on another rank",
    ]


def test_a_target_at_an_edge_is_counted_by_the_candidates_own_cut() -> None:
    lacking = ["none of 1 cases with a target whose label is on another rank"]
    assert lacks([SHARED], [judged(SHARED, at_edge=0)]) == lacking
    # A candidate that does not show which rank holds a label is assumed to cut as ours does.
    assert lacks([SHARED], [judged(SHARED, at_edge=None)]) == []


def test_gradients_that_are_zero_in_every_case_are_named() -> None:
    drawn = [SHARED] * ENOUGH
    assert lacks(drawn, [judged(SHARED, DEAD)] * (ENOUGH - 1)) == []
    dead_one = f"no element of grad.layers.*.attn.q, which was zero in all {ENOUGH} cases"
    assert lacks(drawn, [judged(SHARED, DEAD)] * ENOUGH) == [dead_one]
    assert lacks(drawn, [*[judged(SHARED, DEAD)] * ENOUGH, judged(SHARED)]) == []
    dead = tuple(replace(key, zero=True) for key in KEYS)
    all_dead = "no gradient, because all of them were zero in every case"
    assert lacks([SHARED], [judged(SHARED, dead)]) == [all_dead]


def test_coverage_of_parts_adds_up_and_a_gap_hides_no_failure() -> None:
    part = Tally(coverage=Coverage.of_cases([SHARED] * 6))
    other = Tally(coverage=Coverage.of_cases([SHARED] * 6))
    other.add(judged(SHARED))
    other.add(judged(SHARED))
    assert (part + other).verdict == "FAULT"
    part.add(judged(SHARED))
    assert (part + other).verdict == "EQUAL"
    other.add(replace(judged(SHARED), verdict=Verdict.DIVERGED))
    assert (part + other).verdict == "DIVERGED"
    assert Tally.from_record(json.loads(json.dumps((part + other).record()))) == part + other


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_a_candidate_that_refuses_what_was_requested_is_a_fault(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = [f"{PLANTED / 'false_passes.py'}:{name}" for name in ("ONLYSP1", "LIMSP1", "NOTARGET")]
    options = ("--cases", "6", "--sp", "1,2", "--dp", "1", "--dtype", "fp64", "--json")
    candidates = [word for name in names for word in ("--candidate", name)]
    assert main(["check", *options, *candidates]) == 3
    tallies = json.loads(capsys.readouterr().out)["candidates"]
    for name in names:
        assert tallies[name]["verdict"] == "FAULT"
        assert {*tallies[name]["verdicts"]} <= {"EQUAL", "WITHIN", "UNSUPPORTED"}
        assert any("on another rank" in gap for gap in tallies[name]["unexamined"])


def test_a_published_step_that_was_examined_on_too_little_is_reported() -> None:
    stage = Stage(coverage=Coverage.of_cases([SHARED] * 8))
    examined = Examined("a.b", "a@1", {}, stages={"sp 2": stage})
    stage.add(judged(SHARED))
    assert len(examined.unexamined) == 2
    stage.add(judged(SHARED))
    assert examined.unexamined == []
    assert Examined("a.b", "a@1", {}, stages={"sp 1": Stage()}).unexamined == [
        "no case that shares a sequence"
    ]


def test_rare_sizes_are_not_required() -> None:
    large = replace(SHARED, heads=3, kv_heads=3, sp=3)
    request = Request(
        candidates=("a",), sps=(1, 2), dps=(1,), dtypes=("fp64",), losses=("token-mean",),
        count=2, seed=0, rare_sps=(3,),
    )  # fmt: skip
    source: Any = SimpleNamespace(share=[SHARED, large], _request=request)
    assert {*CaseSource.requested_coverage(source).asked} == {"a sequence over sp 2", AT_AN_EDGE}


def test_a_candidate_that_is_not_judged_on_what_was_asked_for_gets_advice() -> None:
    request = Request(
        candidates=("a",), sps=(2, 4), dps=(1,), dtypes=("fp64",), losses=("token-mean",),
        count=2, seed=0, rare_sps=(3,),
    )  # fmt: skip
    summary = empty_summary(request, 4, WHOLE, 1)
    tally = summary.tallies["a"]
    tally.coverage.ask(SHARED)
    tally.add(replace(judged(SHARED), verdict=Verdict.UNSUPPORTED, reason="it says so"))
    assert closing(summary, 3) == (
        "exit status 3: a supports none of 1 cases that were drawn; 1 times because of "
        "'it says so': leave such cases out with --loss, --dtype, --sp, --dp, --ranks, --kernel "
        "and --set"
    )
    tally.add(judged(replace(SHARED, sp=4)))
    sentence = closing(summary, 3)
    assert "not judged on enough of what was asked for: none of 1 cases with a seq" in sentence
    assert sentence.endswith("with --sp, --dtype, --loss and --set, or ask for more --cases")


def test_each_value_that_the_user_names_is_required() -> None:
    twice = replace(SHARED, dp=2, rows=SHARED.rows * 2)
    coverage = Coverage.of_cases([SHARED] * 8 + [twice] * 8, ["dp"])
    for _ in range(8):
        coverage.add(judged(SHARED))
    assert "none of 8 cases with dp=2" in [*coverage.lacks()]
    for _ in range(2):
        coverage.add(judged(twice))
    assert not any("dp=2" in gap for gap in coverage.lacks())


@pytest.mark.usefixtures("own_pool")
def test_a_named_value_that_no_case_had_is_a_fault_unless_shards_are_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    request = Request(
        candidates=("a",), sps=(2, 4), dps=(1,), dtypes=("fp64",), losses=("token-mean",),
        count=2, seed=0, stated=("window=none,4",), named=("window",),
    )  # fmt: skip
    summary = empty_summary(request, 4, WHOLE, 1)
    tally = summary.tallies["a"]
    tally.coverage.ask(SHARED, request.named)
    tally.add(judged(SHARED))
    assert tally.verdict == "EQUAL"
    assert summary.undrawn == ["a sequence over sp 4", "window=4"]
    assert summary.verdict == "FAULT"
    assert closing(summary, 3) == (
        "exit status 3: no case with a sequence over sp 4 was drawn; no case with window=4 was "
        "drawn: ask for more --cases"
    )
    # Another shard may have such cases, and sizes that the user did not name are not required.
    assert msgspec.structs.replace(summary, of=2).verdict == "EQUAL"
    unnamed = replace(request, rare_sps=(3,), stated=(), named=())
    assert msgspec.structs.replace(summary, request=unnamed).verdict == "EQUAL"
    # A candidate that was given up was not asked in every lot.
    tally.lacking = 1
    assert summary.undrawn == []
    # The command says so as well; its first case has the largest sp.
    assert main(["check", "--cases", "1", "--sp", "1,2", "--dp", "1,2", "--ranks", "2"]) == 3
    assert "no case with dp=2 was drawn: ask for more --cases" in capsys.readouterr().out
