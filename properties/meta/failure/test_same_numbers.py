"""A step that gives the numbers of a known bug is told which, and is not compared with itself."""

import re
import time
from typing import Any

import pytest

from harness.candidates.own.mutants import BANK
from harness.candidates.required import only_required
from harness.case import parse
from harness.cli import main
from harness.commands.options import DIVERGED
from harness.failure import same_numbers
from harness.failure.same_numbers import known_alike
from harness.judge import Session
from harness.ranks.pool import RankPool
from properties.helpers.judging import evaluate
from properties.planted import scratch

pytest_plugins = ["properties.helpers.own_pool"]

CASE = parse("case/1 rows=2:11,3:011 heads=2/2 layers=1 vocab=16 sp=2 window=1 seed=0")
NO_WINDOW = f"{scratch.__file__}:NOWINDOW"
# The window lost, and others that are wrong on the same case.
DROPPED, SOME = "B57", ("B57", "B13", "B17", "B40", "B60")


@pytest.fixture
def few_mutants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_numbers, "BANK", {key: BANK[key] for key in SOME})


def keys(candidate: str, pool: RankPool) -> list[str]:
    found, where = known_alike(evaluate(CASE, candidate, pool), Session(pool))
    said = r"on 10 cases, of which \d+ go wrong; (\d+) of \1 known bugs with numbers compared"
    assert re.fullmatch(said, where)
    return [mutant.key for mutant in found]


@pytest.mark.slow
@pytest.mark.usefixtures("few_mutants")
def test_the_known_bug_with_the_same_numbers_is_cited(harness_pool: RankPool) -> None:
    assert keys(NO_WINDOW, harness_pool) == [DROPPED]
    assert keys(f"{scratch.__file__}:ODD", harness_pool) == []


@pytest.mark.slow
@pytest.mark.usefixtures("few_mutants")
def test_a_mutant_is_not_cited_for_itself(harness_pool: RankPool) -> None:
    name = BANK[DROPPED].candidate.name
    assert keys(name, harness_pool) == []
    assert keys(only_required(name), harness_pool) == []


@pytest.mark.usefixtures("few_mutants")
def test_of_a_right_step_no_known_bug_is_cited(harness_pool: RankPool) -> None:
    found, where = known_alike(
        evaluate(CASE, "native-gather", harness_pool), Session(harness_pool)
    )
    assert (found, where) == ([], "on 0 of 10 cases it goes wrong, which is too few to compare")


def test_no_known_bug_is_cited_of_a_step_that_is_compared_with_itself(
    harness_pool: RankPool,
) -> None:
    failure = evaluate(CASE, "mutants.B14", harness_pool, against="self")
    assert failure.verdict.failed
    found, where = known_alike(failure, Session(harness_pool))
    assert found == []
    assert where.startswith("known bugs are of our own model")


@pytest.mark.slow
@pytest.mark.usefixtures("few_mutants")
def test_who_was_not_compared_in_time_is_not_said_to_differ(
    harness_pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = evaluate(CASE, NO_WINDOW, harness_pool)
    real, calls = same_numbers._gives, list[bool]()

    def slow(*given: Any) -> bool:
        calls.append(real(*given))
        if len(calls) == 2:
            monkeypatch.setattr(time, "monotonic", lambda: float("inf"))
        return calls[-1]

    monkeypatch.setattr(same_numbers, "_gives", slow)
    _, compared = known_alike(failure, Session(harness_pool))
    monkeypatch.undo()
    assert compared.endswith(
        "1 of 5 known bugs with numbers compared; time ran out before all were compared"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("few_mutants", "own_pool")
def test_the_command_cites_it_with_its_threads(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["repro", str(CASE), "--candidate", NO_WINDOW, "--no-diagnose", "--like"]
    assert main(words) == DIVERGED
    said = capsys.readouterr().out
    assert f"  like    the same numbers as {DROPPED}: " in said
    assert "  like    on 10 cases, of which 5 go wrong; 5 of 5 known bugs" in said
    assert BANK[DROPPED].threads[0] in said


@pytest.mark.long
def test_of_all_mutants_only_those_that_lose_the_window_are_cited(harness_pool: RankPool) -> None:
    assert {BANK[key].anomaly for key in keys(NO_WINDOW, harness_pool)} == {"window-ignored"}
