"""The action for GitHub: what its commands do, run here one after the other as a runner does."""

import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from properties.helpers.commands import run_to_end
from properties.helpers.places import ROOT

ACTION = ROOT / ".github" / "actions" / "check"


@dataclass(frozen=True)
class Job:
    """What a job left behind that has one step, which uses the action."""

    statuses: list[int]
    output: str
    page: str
    results: Path
    uploaded: str


def run_action(folder: Path, **inputs: str) -> Job:
    """Run the commands of the action in a folder; after a failure only those that always run."""
    yaml = pytest.importorskip("yaml")
    action: dict[str, Any] = yaml.safe_load((ACTION / "action.yml").read_text())
    given = {name: one.get("default", "") for name, one in action["inputs"].items()} | inputs
    temp, page = folder / "temp", folder / "page.md"
    values = {f"inputs.{name}": value for name, value in given.items()}
    values["runner.temp"] = str(temp)

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: values[found[1]], text)

    statuses, output, uploaded = list[int](), "", ""
    for step in action["runs"]["steps"]:
        if any(statuses) and "if" not in step:
            continue
        if "uses" in step:
            uploaded = filled(step["with"]["path"])
            continue
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "an input in a command could be a command of its own"
        done = run_to_end(
            *("bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]),
            cwd=folder,
            GITHUB_ACTION_PATH=str(ACTION),
            GITHUB_ACTIONS="true",
            GITHUB_STEP_SUMMARY=str(page),
            **{name: filled(text) for name, text in step["env"].items()},
        )
        statuses.append(done.returncode)
        output += done.stdout + done.stderr
    written = page.read_text() if page.exists() else ""
    return Job(statuses, output, written, temp / "harness", uploaded)


SIZES = "--cases 4 --sp 2 --dp 1 --dtype fp64"


@pytest.mark.slow
def test_a_right_step_ends_well_and_the_page_of_the_job_has_its_line(tmp_path: Path) -> None:
    job = run_action(
        tmp_path, candidates="native-local", options=SIZES, python=sys.executable, name="mine"
    )
    assert job.statuses == [0, 0, 0], job.output
    document = json.loads((job.results / "mine.json").read_text())
    assert document["verdict"] in ("EQUAL", "WITHIN")
    assert "| mine |  |  | 4 cases" in job.page
    assert any((job.results / "pages").iterdir())
    assert job.uploaded == str(job.results)


@pytest.mark.slow
def test_a_wrong_step_fails_the_job_is_annotated_and_its_failure_is_kept(tmp_path: Path) -> None:
    options = f"{SIZES} --no-diagnose"
    job = run_action(
        tmp_path, candidates="native-local mutants.B16", options=options, python=sys.executable
    )
    assert job.statuses == [0, 1, 0], job.output
    assert "**check: DIVERGED**" in job.page
    assert "::error title=check%3A DIVERGED::" in job.output
    assert len(list((job.results / "failures").iterdir())) == 1


# Stands in for a Python without the harness; it notes that something was installed.
LACKS_IT = """#!/bin/sh
if [ "$1" = -c ]; then exec env -u PYTHONPATH {python} -S "$@"; fi
if [ "$2" = pip ]; then touch installed; exit; fi
exec {python} "$@"
"""


@pytest.mark.slow
def test_a_checkout_of_the_action_in_the_workspace_is_not_taken_for_the_package(
    tmp_path: Path,
) -> None:
    (tmp_path / "harness").mkdir()
    lacks_it = tmp_path / "python"
    lacks_it.write_text(LACKS_IT.format(python=sys.executable))
    lacks_it.chmod(0o755)
    job = run_action(tmp_path, candidates="native-local", options=SIZES, python=str(lacks_it))
    assert job.statuses == [0, 0, 0], job.output
    assert (tmp_path / "installed").exists()


@pytest.mark.slow
def test_an_input_is_words_and_never_a_command_or_a_pattern(tmp_path: Path) -> None:
    shutil.copy(ROOT / "LICENSE", tmp_path / "--json")
    options = f"{SIZES} ; touch ran $(touch ran) --*"
    job = run_action(tmp_path, candidates="native-local", options=options, python=sys.executable)
    assert job.statuses[1] == 2, job.output
    assert not (tmp_path / "ran").exists()
