"""In a folder from another person, commands read the files that are named, and run none."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.candidates import locate
from harness.case import parse
from harness.failure.bundle import write_bundle
from harness.ranks.pool import RankPool
from harness.trace import Assembly
from properties.helpers.bundles import make_comparison
from properties.helpers.commands import HARNESS, run_to_end

LINE = "case/1 rows=3:111 sp=1"
# Modules that the controller, the supervisor or the ranks import; some are imported late.
NAMES = ("torch", "numpy", "json", "queue", "pickle", "multiprocessing", "rich", "msgspec")


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """Make a bundle with modules of well-known names, each of which writes a file if it runs."""
    folder = write_bundle(replace(make_comparison("labels"), candidate="native-local"), tmp_path)
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'run')!r}, 'a').write({name!r})")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "output"),
    [
        # The failure in the bundle is made up, so the case passes.
        ("repro .", "(EQUAL|WITHIN) +candidate native-local"),
        ("check --cases 2 --ranks 1 --sp 1 --dp 1 --pools 2", "2 cases in"),
    ],
)
def test_no_module_is_imported_from_the_current_folder(
    words: str, output: str, strange: Path
) -> None:
    done = run_to_end(*HARNESS, *words.split(), cwd=strange)
    assert re.search(output, done.stdout), done
    assert not (strange.parent / "run").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("own_processes")
def test_ranks_that_start_as_separate_programs_import_nothing_from_the_current_folder(
    strange: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(strange)
    # An empty entry also means the current folder.
    monkeypatch.setenv("PYTHONPATH", ":/nowhere")
    with RankPool(1) as pool:
        assert isinstance(pool.run(parse(LINE), locate("native-local")), Assembly)
    assert not (strange.parent / "run").exists()
