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
from properties.helpers.bundles import CASE, FILES, made_by_hand
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


STRUCK = """
import os, signal, sys
from itertools import count
from pathlib import Path
from harness.failure.bundle import read_bundle, write_bundle
from properties.helpers.bundles import FILES, made_by_hand
from properties.helpers.killed import at_event

folder, blow = Path(sys.argv[1]), signal.Signals[sys.argv[2]]
# Of one name, and yet no file of one fits to the other.
kinds = [made_by_hand("labels"), made_by_hand("nll", "loss", reason="x" * 20_000)]

def found():
    (place,) = (each for each in folder.iterdir() if not each.name.startswith("."))
    assert {file.name for file in place.iterdir()} == FILES
    return len(read_bundle(place).tensors) - 1

write_bundle(kinds[0], folder)
for event in count(1):
    child = os.fork()
    if not child:
        at_event(event, folder, blow)
        write_bundle(kinds[1], folder)
        os._exit(0)
    _, status = os.waitpid(child, os.WUNTRACED)
    if os.WIFEXITED(status):
        break
    print(placed := found())
    # Another comes between; who was stopped in the middle has to find its way.
    write_bundle(kinds[0], folder)
    assert found() == 0
    if os.WIFSTOPPED(status):
        os.kill(child, signal.SIGCONT)
        assert os.waitpid(child, 0)[1] == 0
        assert found() == 1 - placed
        write_bundle(kinds[0], folder)
"""


@pytest.mark.slow
@pytest.mark.parametrize("blow", ["SIGKILL", "SIGSTOP"])
def test_a_writer_that_is_struck_at_any_moment_leaves_a_whole_bundle(
    tmp_path: Path, blow: str
) -> None:
    told = ran(sys.executable, "-c", STRUCK, tmp_path / "kept", blow)
    assert told.returncode == 0, told.stderr
    # Of each file one opens; and the old one is there until the new one is.
    assert told.stdout.count("0") > len(FILES)


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
