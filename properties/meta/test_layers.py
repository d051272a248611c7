"""The rooms of the house hold, and what has to be light is light."""

import shutil
import sys
from pathlib import Path

import pytest

from harness.cli import COMMANDS, GROUPS
from properties.helpers.commands import ran, seconds_of
from properties.helpers.places import ROOT

LINT = Path(sys.executable).with_name("lint-imports")
# For each contract of pyproject.toml an import that breaks it.
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
    return " ".join(ran(LINT, "--no-cache", cwd=folder).stdout.split())


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("house")
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copytree(ROOT / "harness", folder / "harness")
    return folder


def test_no_import_goes_upwards_and_each_contract_is_broken_by_one_that_does(house: Path) -> None:
    assert f"{len(PLANTED)} kept, 0 broken." in linted(house)
    for file, line in PLANTED.values():
        path = house / "harness" / file
        path.write_text(f"{path.read_text()}\n{line}\n")
    found = linted(house)
    assert f"0 kept, {len(PLANTED)} broken." in found
    assert all(name in found for name in PLANTED)


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter holds after one statement."""
    told = ran(sys.executable, "-c", f"{statement}\nimport sys; print(*sys.modules)")
    return set(told.stdout.split())


def test_cases_the_plugin_and_help_need_no_torch() -> None:
    loaded = loaded_by(
        "import harness.case, harness.plan, harness.generation, harness.plugin\n"
        "from harness.cli import COMMANDS, GROUPS, main\n"
        "for name in ([], *([name] for name in (*COMMANDS, *GROUPS))): main([*name, '--help'])"
    )
    pages = {f"harness.commands.{name}" for name in (*COMMANDS, *GROUPS)}
    assert pages | {"check", "--shard", "harness.generation", "hypothesis"} <= loaded
    assert not {"torch", "numpy"} & loaded


def test_a_rank_connects_and_a_launcher_is_noticed_before_anything_heavy_is_loaded() -> None:
    loaded = loaded_by("import harness.ranks.worker, harness.ranks.world")
    assert not {"torch", "numpy", "hypothesis"} & loaded


def test_help_answers_at_once() -> None:
    def ask() -> None:
        assert "check" in ran(sys.executable, "-m", "harness", "--help").stdout

    assert min(seconds_of(ask) for _ in range(3)) < 0.3
