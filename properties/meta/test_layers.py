"""The rooms of the house hold, and what has to be light is light."""

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import harness

ROOT = Path(harness.__file__).parent.parent
LINT = Path(sys.executable).with_name("lint-imports")
# For each contract of pyproject.toml an import that breaks it.
PLANTED = {
    "a room knows only the rooms below it": (
        "failure/shrink.py",
        "def late():\n    from harness.campaign.check import draw",
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
    run = subprocess.run(
        [LINT, "--no-cache"], cwd=folder, capture_output=True, text=True, check=False
    )
    return " ".join(run.stdout.split())


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
    run = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys; print(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(run.stdout.split())


def test_cases_and_the_command_line_need_no_torch() -> None:
    loaded = loaded_by(
        "import harness.case, harness.plan, harness.generation, harness.cli, harness.plugin"
    )
    assert {"harness.cli", "harness.generation", "hypothesis"} <= loaded
    assert not {"torch", "numpy"} & loaded


def test_a_rank_can_connect_before_it_loads_anything_heavy() -> None:
    loaded = loaded_by("import harness.ranks.worker")
    assert not {"torch", "numpy", "hypothesis"} & loaded


def test_a_host_that_joins_loads_nothing_heavy_itself() -> None:
    loaded = loaded_by("import harness.ranks.node")
    assert not {"torch", "numpy", "hypothesis"} & loaded


def test_the_probe_sees_torch_where_it_is_loaded() -> None:
    assert {"torch", "numpy"} <= loaded_by("import harness.reference")


def test_help_answers_at_once() -> None:
    # In seconds of a processor, of which other work takes none; torch alone needs four times that.
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "harness", "--help"]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert b"check" in run.stdout
    assert min(spent) < 0.4
