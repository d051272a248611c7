"""A script of a failure against a recipe shows it, and shows that it is gone."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.case import parse
from harness.compare import Comparison, Verdict
from harness.failure.script import script
from harness.ranks.pool import RankPool
from properties.helpers.commands import run_to_end
from properties.helpers.judging import evaluate
from properties.meta.recipes.test_named_recipe import FILE, LINE, RECIPE

pytestmark = pytest.mark.slow
SECONDS = 60


@pytest.fixture(scope="module")
def failures() -> dict[str, Comparison]:
    """Return the failure of a step with a recipe, and that of a candidate against a named one."""
    case = parse(LINE)
    with RankPool(2) as pool:
        found = {
            name: evaluate(case, f"{FILE}:{name}", pool, against=against)
            for name, against in (("WITH_RECIPE", "plain"), ("WRONG_METRIC", RECIPE))
        }
    assert {failure.verdict for failure in found.values()} == {Verdict.DIVERGED}
    return found


def run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "shown.py"
    file.write_text(text)
    return run_to_end(sys.executable, file.name, cwd=folder)


def test_the_script_of_a_step_compares_it_with_plain_training_that_it_computes_itself(
    failures: dict[str, Comparison], tmp_path: Path
) -> None:
    failure = failures["WITH_RECIPE"]
    text = script(failure, "cpu gloo 1", SECONDS)
    assert "from those of plain training of its recipe." in text
    # Whatever the script states of plain training does not matter.
    text = re.sub(r"\): \([^,]+, ", "): (12345, ", text)
    outcome = run(text, tmp_path)
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert outcome.stdout.startswith(f"DIVERGED  candidate {FILE}:WITH_RECIPE")
    assert failure.measured.first is not None
    first = f"{failure.measured.first.key} {list(failure.measured.first.index)}: expected "
    (line,) = (line for line in outcome.stdout.splitlines() if first in line)
    expected, got = map(float, re.findall(r"(?:expected|got) ([-.e\d]+)", line))
    assert expected == pytest.approx(failure.measured.first.expected)
    assert got == pytest.approx(2 * expected)


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("WITH_RECIPE", "(2 * loss).backward()", "loss.backward()"),
        ("WRONG_METRIC", "judge(WRONG_METRIC.run)", "judge(RIGHT.run)"),
    ],
)
def test_the_script_of_a_step_that_was_mended_says_so(
    name: str, wrong: str, right: str, failures: dict[str, Comparison], tmp_path: Path
) -> None:
    text = script(failures[name], "cpu gloo 1", SECONDS)
    assert text.count(wrong) == 1
    outcome = run(text.replace(wrong, right), tmp_path)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.startswith("GONE")


def test_the_script_of_a_candidate_names_the_recipe_that_it_is_compared_with(
    failures: dict[str, Comparison], tmp_path: Path
) -> None:
    text = script(failures["WRONG_METRIC"], "cpu gloo 1", SECONDS)
    assert f"from those of plain training of {RECIPE}." in text
    outcome = run(text, tmp_path)
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert "metric.twice []: expected" in outcome.stdout
