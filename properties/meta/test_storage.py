"""What is written is there whole or not at all, at whatever moment its writer is struck."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.storage import LEFTOVER_SECONDS, require_writable, write_file, write_folder
from properties.helpers.commands import ran

# Both kinds have one name, and yet no byte of one is as in the other.
STRUCK = """
import os, signal, sys
from itertools import count
from pathlib import Path
from harness.storage import write_file, write_folder
from properties.helpers.killed import at_event

folder, blow, kind = Path(sys.argv[1]), signal.Signals[sys.argv[2]], sys.argv[3]
place, size = folder / "place", 1 << 20

def write(which):
    if kind == "file":
        write_file(place, bytes([which]) * size)
    else:
        names = ["a", "b/c", ("old", "new")[which]]
        write_folder(place, dict.fromkeys(names, bytes([which]) * size))

def found():
    assert [each.name for each in folder.iterdir() if each.name[0] != "."] == ["place"]
    files = [place] if kind == "file" else [each for each in place.rglob("*") if each.is_file()]
    if kind == "folder":
        assert len(files) == 3
    (content,) = {file.read_bytes() for file in files}
    assert len(content) == size
    assert {*content} == {content[0]}
    return content[0]

write(0)
for event in count(1):
    child = os.fork()
    if not child:
        at_event(event, folder, blow)
        write(1)
        os._exit(0)
    _, status = os.waitpid(child, os.WUNTRACED)
    if os.WIFEXITED(status):
        break
    print(placed := found())
    # Another comes between; who was stopped in the middle has to find its way.
    write(0)
    assert found() == 0
    if os.WIFSTOPPED(status):
        os.kill(child, signal.SIGCONT)
        assert os.waitpid(child, 0)[1] == 0
        assert found() == 1 - placed
        write(0)
left = [each for each in folder.iterdir() if each.name[0] == "."]
assert (not left) == (blow == signal.SIGSTOP), left
"""


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("blow", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_writer_that_is_struck_at_any_moment_leaves_the_old_or_the_new(
    tmp_path: Path, kind: str, blow: str
) -> None:
    told = ran(sys.executable, "-c", STRUCK, tmp_path / "new" / "folder", blow, kind)
    assert told.returncode == 0, told.stderr
    # One opens each file; and the old one is there until the new one is.
    assert told.stdout.count("0") >= (2 if kind == "file" else 4)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_of_several_who_write_at_once_one_is_there_whole(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, place = threading.Barrier(4), tmp_path / "place"
    way = "replace" if kind == "file" else "rename"
    move = getattr(Path, way)

    def moved_together(draft: Path, to: Path) -> Path:
        # All have written before any of them moves it.
        if draft not in seen:
            seen.add(draft)
            together.wait(60)
        new: Path = move(draft, to)
        return new

    seen: set[Path] = set()
    monkeypatch.setattr(Path, way, moved_together)

    def write(content: bytes) -> None:
        if kind == "file":
            write_file(place, content)
        else:
            write_folder(place, {"a": content, "b": content})

    contents = [bytes([n]) * 1000 for n in range(together.parties)]
    with ThreadPoolExecutor(together.parties) as writing:
        list(writing.map(write, contents))
    files = [place] if kind == "file" else [place / "a", place / "b"]
    (content,) = {file.read_bytes() for file in files}
    assert content in contents
    assert [*tmp_path.iterdir()] == [place]


@pytest.mark.parametrize("way", ["renameat2", "rename"])
def test_a_folder_takes_the_place_of_the_one_before_also_without_an_exchange(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "rename":
        monkeypatch.setattr("harness.storage._exchange", lambda *_: False)
    for name in ("a", "b"):
        write_folder(tmp_path / "x", {name: b""})
        assert [file.name for file in (tmp_path / "x").iterdir()] == [name]
        assert [each.name for each in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_who_cannot_write_leaves_what_was_there_and_nothing_else(
    kind: str, tmp_path: Path
) -> None:
    write_folder(tmp_path / "a folder", {"a": b"1"})
    with pytest.raises(OSError, match=r"/x|a folder"):
        if kind == "file":
            write_file(tmp_path / "a folder", b"2")
        else:
            write_folder(tmp_path / "a folder", {"x": b"2", "x/y": b"2"})
    assert (tmp_path / "a folder" / "a").read_bytes() == b"1"
    assert [each.name for each in tmp_path.iterdir()] == ["a folder"]


def test_what_killed_writers_left_behind_is_swept_away_in_time(tmp_path: Path) -> None:
    def left(name: str, age: float) -> None:
        moment = (tmp_path / name).stat().st_mtime - age
        os.utime(tmp_path / name, (moment, moment))

    for age, seconds in (("old", LEFTOVER_SECONDS + 60), ("new", 60.0)):
        (tmp_path / f".draft-{age}").mkdir()
        (tmp_path / f".draft-{age}-file").touch()
        left(f".draft-{age}", seconds)
        left(f".draft-{age}-file", seconds)
    write_folder(tmp_path / "x", {})
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        ".draft-new", ".draft-new-file", "x",
    ]  # fmt: skip


def test_a_folder_in_which_nothing_can_be_written_is_told_from_others(tmp_path: Path) -> None:
    require_writable(tmp_path / "new" / "folder")
    assert [*(tmp_path / "new" / "folder").iterdir()] == []
    # Not even root makes a file there.
    for folder in (Path("/proc"), Path("/proc/new")):
        with pytest.raises(OSError, match=str(folder)):
            require_writable(folder)
