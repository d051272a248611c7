"""A bundle is there whole or not at all, wherever it can be written."""

import os
import re
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.failure.bundle import find_bundle, read_bundle, write_bundle
from harness.failure.bundle.folder import LEFTOVER_SECONDS, elsewhere, put
from harness.failure.bundle.keep import keep
from harness.failure.bundle.read import BadBundle
from harness.ranks.pool import RankPool
from properties.helpers.bundles import CASE, made_by_hand
from properties.helpers.commands import ran


def test_where_nothing_can_be_written_a_bundle_goes_to_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    # Not even root makes a folder there.
    monkeypatch.chdir("/proc")
    place = write_bundle(made_by_hand("labels"))
    assert place.parent == tmp_path / f"harness-failures-{os.getuid()}"
    assert find_bundle(CASE.id) == place
    assert read_bundle(place).case == CASE
    assert stat.filemode(place.parent.stat().st_mode) == "drwx------"


@pytest.mark.parametrize("what", ["link", "another user's", "open to others"])
def test_what_others_can_reach_in_the_temporary_folder_is_neither_written_nor_read(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harness_pool: RankPool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir("/proc")
    place = write_bundle(made_by_hand("labels"))
    folder = place.parent
    if what == "link":
        folder.rename(tmp_path / "theirs")
        folder.symlink_to(tmp_path / "theirs")
    elif what == "another user's":
        monkeypatch.setattr("os.getuid", lambda: folder.stat().st_uid + 1)
        folder = folder.rename(elsewhere())
    else:
        folder.chmod(0o777)
    said = keep(made_by_hand("labels"), harness_pool)
    assert said.startswith("could not be written: PermissionError: ")
    assert "can be written by others, or is a link; remove it" in said
    with pytest.raises(BadBundle, match="No such file or directory"):
        find_bundle(CASE.id)


def test_where_nothing_at_all_can_be_written_that_is_said(
    monkeypatch: pytest.MonkeyPatch, harness_pool: RankPool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc")
    monkeypatch.chdir("/proc")
    said = keep(made_by_hand("labels"), harness_pool)
    assert said.startswith("could not be written: ")


KILLED = """
import os, random, signal, sys
from pathlib import Path
from harness.failure.bundle import read_bundle, write_bundle
from properties.helpers.bundles import FILES, made_by_hand
from properties.helpers.killed import at_event

folder, events, found = Path(sys.argv[1]), random.Random(0), 0
# Of one name, and yet no file of one fits to the other.
kinds = [made_by_hand("labels"), made_by_hand("nll", "loss", reason="x" * 20_000)]
for _ in range(int(sys.argv[2])):
    writers = []
    for first in (0, 1):
        event = events.randint(1, 60)
        child = os.fork()
        if not child:
            at_event(event, folder)
            while True:
                for n in (first, 1 - first):
                    write_bundle(kinds[n], folder)
        writers.append(child)
    for child in writers:
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    for place in folder.iterdir() if folder.exists() else ():
        if not place.name.startswith("."):
            assert {file.name for file in place.iterdir()} == FILES
            bundle = read_bundle(place)
            assert len(bundle.tensors) in (1, 2)
            found += 1
print(found)
"""


@pytest.mark.parametrize("times", [40, pytest.param(100, marks=pytest.mark.long)])
def test_a_writer_that_is_killed_leaves_a_whole_bundle_or_none(tmp_path: Path, times: int) -> None:
    told = ran(sys.executable, "-c", KILLED, tmp_path / "kept", str(times))
    assert told.returncode == 0, told.stderr
    assert int(told.stdout) > times // 4


def test_a_bundle_takes_the_place_of_the_one_before_also_without_an_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n, way in enumerate(("renameat2", "rename")):
        if way == "rename":
            monkeypatch.setattr("harness.failure.bundle.folder._exchange", lambda *_: False)
        place = put({"a": b"%d" % n}, "x", tmp_path)
        place = put({"b": b"%d" % n}, "x", tmp_path)
        assert [file.name for file in place.iterdir()] == ["b"]
        assert [each.name for each in tmp_path.iterdir()] == ["x"]


def test_what_killed_writers_left_behind_is_swept_away_in_time(tmp_path: Path) -> None:
    for name, age in ((".draft-old", LEFTOVER_SECONDS + 60), (".draft-new", 60.0)):
        (tmp_path / name).mkdir()
        moment = (tmp_path / name).stat().st_mtime - age
        os.utime(tmp_path / name, (moment, moment))
    put({}, "x", tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == [".draft-new", "x"]


def test_candidates_of_one_file_name_have_bundles_of_their_own(tmp_path: Path) -> None:
    names = ("a/mine.py:STEP", "b/mine.py:STEP", "mine.py:STEP", "odd name\n.py:STEP")
    places = {write_bundle(replace(made_by_hand(), candidate=n), tmp_path) for n in names}
    assert len(places) == len(names)
    assert tmp_path / f"{CASE.id}-mine.py-STEP" in places
    for place in places:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", place.name)
        read_bundle(place)
