"""Where a launch keeps its files, and when they are removed."""

import os
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.case import parse
from harness.ranks.pool import RankPool
from harness.supervision import launch_folder
from harness.supervision.launch_folder import LONGEST_PLACE, PREFIX, NoRoom
from harness.verdict import Verdict
from properties.helpers.commands import run_to_end
from properties.helpers.judging import evaluate

CASE = parse("case/1 rows=3:111,4:1011 sp=2")


@pytest.fixture
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Make a folder that holds all temporary files, whatever the length of its name."""
    monkeypatch.setattr(launch_folder, "LONGEST_PLACE", 1000)

    def make(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        return folder

    return make


@pytest.mark.slow
def test_if_the_temporary_folder_has_too_long_a_path_for_a_socket_another_is_used(
    temporary_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = temporary_folder("x" * LONGEST_PLACE)
    monkeypatch.setattr(launch_folder, "LONGEST_PLACE", LONGEST_PLACE)
    with RankPool(2) as pool:
        assert evaluate(CASE, "native-local", pool).verdict is Verdict.WITHIN
    assert list(folder.iterdir()) == []


def test_a_missing_temporary_folder_is_bad_input_and_no_fault_of_the_candidate(
    temporary_folder: Callable[[str], Path],
) -> None:
    folder = temporary_folder("gone")
    folder.rmdir()
    with (
        RankPool(2) as pool,
        pytest.raises(NoRoom, match=f"TMPDIR={folder}: no folder .*: No such file or directory"),
    ):
        evaluate(CASE, "native-local", pool)
    assert not folder.exists()


# The mount ends with the namespace of the command.
SMALL = """
mount -t tmpfs -o size=256k none small || exit 99
TMPDIR=$PWD/small {python} -m harness repro "{case}" --candidate mine.py:MINE
ls -A small
"""
FILLS = """
import tempfile
from pathlib import Path
from harness.candidates.own.native import LocalDialect

class Mine(LocalDialect):
    def run(self, case, rank, emit):
        with Path(tempfile.gettempdir(), "all").open("wb", buffering=0) as file:
            for _ in range(1000):
                file.write(bytes(4096))

MINE = Mine()
"""


@pytest.mark.slow
def test_a_full_disk_is_reported_and_no_file_is_left() -> None:
    # pytest's own folder has too long a path, and ranks would use another.
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "small").mkdir()
        (Path(folder) / "mine.py").write_text(FILLS)
        script = SMALL.format(python=sys.executable, case=CASE)
        done = run_to_end("unshare", "--mount", "sh", "-c", script, cwd=Path(folder))
    if done.returncode == 99 or "unshare failed" in done.stderr:
        pytest.skip(f"nothing can be mounted on this machine: {done.stderr}")
    assert "OSError: [Errno 28] No space left on device" in done.stdout, done.stdout
    # `ls` has printed nothing after the report.
    assert done.stdout.endswith("--candidate mine.py:MINE\n")


def test_the_folders_of_killed_launches_are_swept_unless_they_are_held_or_new(
    temporary_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = temporary_folder("t")
    for name, age in (("left", 100), ("held", 100), ("new", 1)):
        (folder / f"{PREFIX}{name}" / "logs").mkdir(parents=True)
        moment = (folder / f"{PREFIX}{name}").stat().st_mtime - age
        os.utime(folder / f"{PREFIX}{name}", (moment, moment))
    (folder / "somebody's").mkdir()
    (folder / f"{PREFIX}link").symlink_to(folder / "somebody's")
    held = launch_folder.hold(folder / f"{PREFIX}held")
    made = launch_folder.make()
    kept = {f"{PREFIX}held", f"{PREFIX}new", f"{PREFIX}link", "somebody's", made.name}
    assert {each.name for each in folder.iterdir()} == kept
    assert stat.filemode(made.stat().st_mode) == "drwx------"
    os.close(held)
    with monkeypatch.context() as patch:
        patch.setattr("os.getuid", lambda: -1)
        launch_folder.make()
    # The folder seemed to be another user's.
    assert (folder / f"{PREFIX}held").exists()
    launch_folder.make()
    assert not (folder / f"{PREFIX}held").exists()
