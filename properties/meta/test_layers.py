"""The contracts on imports hold, and the parts that must load fast load no large library."""

import shutil
import sys
from pathlib import Path

import pytest

from harness.cli import COMMANDS, GROUPS
from properties.helpers.commands import run_to_end, times_of_importing
from properties.helpers.places import ROOT

LINT = Path(sys.executable).with_name("lint-imports")
# For each contract of pyproject.toml, a file and an import in it that breaks the contract.
PLANTED = {
    "a room knows only the rooms below it": (
        "failure/shrink.py",
        "def late():\n    from harness.campaign.case_source import draw",
    ),
    "no import goes in a circle inside a room": (
        "case/row.py",
        "def late():\n    from harness.case.text import parse",
    ),
    "cases are drawn without torch": ("case/invalid.py", "import torch"),
    "reference and judgement know no plan": (
        "compare/budget.py",
        "from harness.plan import plan",
    ),
    "diagnosis starts no rank": (
        "diagnosis/experiments.py",
        "def late():\n    from harness.wire.messages import Run",
    ),
    "a candidate shares the case and the weights": (
        "candidates/own/native/ulysses.py",
        "from harness.reference.padded import group_mean",
    ),
    "no library knows another": (
        "candidates/published/deepspeed/limits.py",
        "from harness.candidates.published.verl import limits",
    ),
}


def linted(folder: Path) -> str:
    return " ".join(run_to_end(LINT, "--no-cache", cwd=folder).stdout.split())


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copytree(ROOT / "harness", folder / "harness")
    return folder


def test_all_contracts_on_imports_hold_and_planted_imports_break_each_one(copy: Path) -> None:
    assert f"{len(PLANTED)} kept, 0 broken." in linted(copy)
    for file, line in PLANTED.values():
        path = copy / "harness" / file
        path.write_text(f"{path.read_text()}\n{line}\n")
    output = linted(copy)
    assert f"0 kept, {len(PLANTED)} broken." in output
    assert all(name in output for name in PLANTED)


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a new interpreter has loaded after a statement."""
    done = run_to_end(sys.executable, "-c", f"{statement}\nimport sys; print(*sys.modules)")
    return set(done.stdout.split())


def test_cases_the_plugin_and_the_help_pages_need_no_torch() -> None:
    loaded = loaded_by(
        "import harness.case, harness.plan, harness.generation, harness.plugin\n"
        "from harness.cli import COMMANDS, GROUPS, main\n"
        "for name in ([], *([name] for name in (*COMMANDS, *GROUPS))): main([*name, '--help'])"
    )
    pages = {f"harness.commands.{name}" for name in (*COMMANDS, *GROUPS)}
    assert pages | {"check", "--shard", "harness.generation", "hypothesis"} <= loaded
    assert not {"torch", "numpy"} & loaded


def test_a_rank_connects_and_finds_its_world_without_any_large_library() -> None:
    loaded = loaded_by("import harness.rank_program.worker, harness.worlds.world")
    assert not {"torch", "numpy", "hypothesis"} & loaded


@pytest.mark.slow
def test_help_takes_less_than_twice_what_importing_its_libraries_takes() -> None:
    """On two idle cores it takes 0.17 s, and importing 0.11 s."""

    def ask() -> None:
        assert "check" in run_to_end(sys.executable, "-m", "harness", "--help").stdout

    assert times_of_importing(ask) < 2
