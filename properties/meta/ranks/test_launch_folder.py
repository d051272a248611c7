"""Where a launch keeps its files, and what becomes of them."""

import os
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.case import parse
from harness.ranks import launch_folder
from harness.ranks.launch_folder import LONGEST_PLACE, PREFIX, NoRoom
from harness.ranks.pool import RankPool
from harness.verdict import Verdict
from properties.helpers.commands import ran
from properties.helpers.judging import evaluate

CASE = parse("case/1 rows=3:111,4:1011 sp=2")


@pytest.fixture
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Temporary files go to this folder; but for what is about that, its name is short enough."""
    monkeypatch.setattr(launch_folder, "LONGEST_PLACE", 1000)

    def go(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        return folder

    return go


@pytest.mark.slow
def test_where_names_are_too_long_for_a_socket_ranks_meet_elsewhere(
    somewhere: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = somewhere("x" * LONGEST_PLACE)
    monkeypatch.setattr(launch_folder, "LONGEST_PLACE", LONGEST_PLACE)
    with RankPool(2) as pool:
        assert evaluate(CASE, "native-local", pool).verdict is Verdict.WITHIN
    assert list(folder.iterdir()) == []


def test_where_there_is_no_folder_any_more_that_is_said_and_nobody_is_blamed(
    somewhere: Callable[[str], Path],
) -> None:
    folder = somewhere("gone")
    folder.rmdir()
    with (
        RankPool(2) as pool,
        pytest.raises(NoRoom, match=f"TMPDIR={folder}: no folder .*: No such file or directory"),
    ):
        evaluate(CASE, "native-local", pool)
    assert not folder.exists()


# What is mounted goes with the namespace.
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
def test_who_fills_the_disk_is_told_so_and_nothing_is_left() -> None:
    # Where names are longer, ranks keep their files elsewhere.
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "small").mkdir()
        (Path(folder) / "mine.py").write_text(FILLS)
        script = SMALL.format(python=sys.executable, case=CASE)
        done = ran("unshare", "--mount", "sh", "-c", script, cwd=Path(folder))
    if done.returncode == 99 or "unshare failed" in done.stderr:
        pytest.skip(f"nothing can be mounted on this machine: {done.stderr}")
    assert "OSError: [Errno 28] No space left on device" in done.stdout, done.stdout
    # Nor is there a file in it.
    assert done.stdout.endswith("--candidate mine.py:MINE\n")


def test_what_killed_launches_left_is_swept_and_what_is_held_or_new_is_not(
    somewhere: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = somewhere("t")
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
    # It was another user's.
    assert (folder / f"{PREFIX}held").exists()
    launch_folder.make()
    assert not (folder / f"{PREFIX}held").exists()
