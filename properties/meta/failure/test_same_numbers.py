"""A known bug is cited for a failure if it gives the same wrong numbers on several cases."""

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
from harness.failure.same_numbers import find_same_numbers
from harness.judge import Session
from harness.ranks.pool import RankPool
from properties.helpers.judging import evaluate
from properties.planted import scratch

pytest_plugins = ["properties.helpers.own_pool"]

CASE = parse("case/1 rows=2:11,3:011 heads=2/2 layers=1 vocab=16 sp=2 window=1 seed=0")
NO_WINDOW = f"{scratch.__file__}:NOWINDOW"
# The mutant that ignores the window, and some that are wrong on the same case.
DROPPED, SOME = "B57", ("B57", "B13", "B17", "B40", "B60")


@pytest.fixture
def few_mutants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_numbers, "NATIVE", {key: BANK[key] for key in SOME})


def cited_keys(candidate: str, pool: RankPool) -> list[str]:
    """Return the keys of the mutants with the candidate's numbers; all must be compared."""
    found, compared = find_same_numbers(evaluate(CASE, candidate, pool), Session(pool))
    sentence = r"on 10 cases, of which \d+ go wrong; (\d+) of \1 known bugs with numbers compared"
    assert re.fullmatch(sentence, compared)
    return [mutant.key for mutant in found]


@pytest.mark.slow
@pytest.mark.usefixtures("few_mutants")
def test_the_known_bug_with_the_same_numbers_is_cited(harness_pool: RankPool) -> None:
    assert cited_keys(NO_WINDOW, harness_pool) == [DROPPED]
    assert cited_keys(f"{scratch.__file__}:ODD", harness_pool) == []


@pytest.mark.slow
@pytest.mark.usefixtures("few_mutants")
def test_a_mutant_is_not_cited_for_itself(harness_pool: RankPool) -> None:
    name = BANK[DROPPED].candidate.name
    assert cited_keys(name, harness_pool) == []
    assert cited_keys(only_required(name), harness_pool) == []


@pytest.mark.slow
@pytest.mark.usefixtures("few_mutants")
def test_no_known_bug_is_cited_for_a_right_step(harness_pool: RankPool) -> None:
    right = evaluate(CASE, "native-gather", harness_pool)
    found, compared = find_same_numbers(right, Session(harness_pool))
    assert found == []
    assert compared == "on 0 of 10 cases it goes wrong, which is too few to compare"


def test_no_known_bug_is_cited_for_a_step_that_is_compared_with_itself(
    harness_pool: RankPool,
) -> None:
    failure = evaluate(CASE, "mutants.B14", harness_pool, against="self")
    assert failure.verdict.failed
    found, compared = find_same_numbers(failure, Session(harness_pool))
    assert found == []
    assert compared.startswith("known bugs are of our own model")


@pytest.mark.slow
@pytest.mark.usefixtures("few_mutants")
def test_mutants_that_were_not_compared_in_time_are_not_counted(
    harness_pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = evaluate(CASE, NO_WINDOW, harness_pool)
    real, results = same_numbers._gives_same_numbers, list[bool]()

    def run_out_of_time(*arguments: Any) -> bool:
        results.append(real(*arguments))
        if len(results) == 2:
            monkeypatch.setattr(time, "monotonic", lambda: float("inf"))
        return results[-1]

    monkeypatch.setattr(same_numbers, "_gives_same_numbers", run_out_of_time)
    _, compared = find_same_numbers(failure, Session(harness_pool))
    monkeypatch.undo()
    assert compared.endswith(
        "1 of 5 known bugs with numbers compared; time ran out before all were compared"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("few_mutants", "own_pool")
def test_repro_like_cites_the_bug_with_its_threads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["repro", str(CASE), "--candidate", NO_WINDOW, "--no-diagnose", "--like"]
    assert main(words) == DIVERGED
    output = capsys.readouterr().out
    assert f"  like    the same numbers as {DROPPED}: " in output
    assert "  like    on 10 cases, of which 5 go wrong; 5 of 5 known bugs" in output
    assert BANK[DROPPED].threads[0] in output


@pytest.mark.long
def test_only_mutants_that_ignore_the_window_are_cited_out_of_all(harness_pool: RankPool) -> None:
    keys = cited_keys(NO_WINDOW, harness_pool)
    assert {BANK[key].anomaly for key in keys} == {"window-ignored"}
