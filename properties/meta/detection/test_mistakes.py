"""`mutants STEP` tries the mistakes of a step with a recipe on the step's own cases."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from harness.campaign.request import Request
from harness.cli import main
from harness.detection.mistakes import Survey, try_mistakes
from harness.detection.survey_table import show_survey
from harness.judge import Session
from harness.ranks.pool import RankPool
from properties.helpers.places import PLANTED

STYLES = PLANTED / "styles.py"
REQUEST = Request(
    candidates=(), sps=(2, 4), dps=(1, 2), dtypes=("fp64", "fp32"), losses=("token-mean",),
    count=4, seed=0, stated=("steps=1", "checkpoint=0", "micro=1"),
)  # fmt: skip


def survey(name: str, pool: RankPool) -> Survey:
    request = replace(REQUEST, candidates=(f"{STYLES}:{name}",))
    return try_mistakes(request, Session(pool))


@pytest.fixture
def on_these_ranks(harness_pool: RankPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the command use the ranks of the test session."""

    @contextmanager
    def opened(*_given: Any) -> Iterator[RankPool]:
        yield harness_pool

    monkeypatch.setattr("harness.commands.mutants.open_pool", opened)


@pytest.mark.slow
def test_each_mistake_that_changes_a_case_is_shown_and_one_that_changes_nothing_is_not(
    harness_pool: RankPool,
) -> None:
    found = survey("plain_loop", harness_pool)
    shown = {mistake.anomaly for mistake in found.shown}
    assert {"label-lost-at-edge", "label-shifted", "positions-restarted"} <= shown
    assert {"denominator-per-rank", "attention-cut", "denominator-per-part"} <= shown
    # The model has no window.
    windows = [each for each in found.mistakes if each.anomaly == "window-ignored"]
    assert len(windows) == 2
    assert all((each.is_open, each.tried) == (True, found.cases) for each in windows)
    assert found.verdict == "WITHIN"
    # Nor has it a teacher, so that a teacher's mistakes cannot be made.
    assert {each.is_possible for each in found.mistakes if "teacher" in each.sentence} == {False}
    assert all(0 < each.tried <= found.cases for each in found.mistakes)


def test_a_step_that_fails_itself_ends_the_survey(harness_pool: RankPool) -> None:
    found = survey("plain_loop__labels_lost", harness_pool)
    assert found.failure is not None
    assert found.verdict == "DIVERGED"


def test_a_survey_in_which_nothing_is_shown_is_a_fault_that_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nothing = Survey(refused=Counter({"dp=1": 3}))
    assert nothing.verdict == "FAULT"
    show_survey(nothing, Console())
    expected = "The step supports no case that was drawn: 3 times because of 'dp=1'\n"
    assert capsys.readouterr().out == expected


@pytest.mark.slow
@pytest.mark.usefixtures("on_these_ranks")
def test_the_command_lists_what_is_shown_and_what_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    step = f"{STYLES}:plain_loop"
    assert main(["mutants", step, "--cases", "2", "--json"]) == 0
    written = capsys.readouterr()
    document = json.loads(written.out)
    names = {each["anomaly"]: each["case"] for each in document["mistakes"]}
    assert names["label-shifted"].startswith("case/1 rows=")
    assert names["window-ignored"] == ""
    at_once = sum(each["tried"] == 1 and each["case"] != "" for each in document["mistakes"])
    assert written.err.startswith(
        f"case 1: {at_once} of {document['possible']} mistakes are shown\n"
    )
    assert "not shown  window-ignored: no layer has a window\n" in written.err
    others = len(document["mistakes"]) - document["possible"]
    last = (
        f"{document['shown']} of {document['possible']} mistakes are shown by 2 cases; "
        f"{others} more cannot be made with this loss"
    )
    assert others > 0
    assert written.err.rstrip().endswith(last)
    assert main(["mutants", f"{step}__labels_lost", "--cases", "2"]) == 1
    assert "The step itself fails.\n\nDIVERGED  candidate " in capsys.readouterr().out


@pytest.mark.usefixtures("on_these_ranks")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["native-gather"], "native-gather has no recipe, and so no mistakes are known of it"),
        (
            [f"{STYLES}:plain_loop", "--shrink"],
            "--shrink: is for the bank of mutants; leave it out",
        ),
        ([f"{STYLES}:plain_loop", "--against", "self"], "--against: is for the bank of mutants"),
        ([f"{STYLES}:plain_loop", "--pools", "2"], "--pools: is for the bank of mutants"),
    ],
)
def test_what_has_no_recipe_and_options_of_the_bank_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mutants", *words]) == 2
    assert message in capsys.readouterr().err
