"""A file or folder is written whole or not at all, whenever its writer is killed or stopped."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.storage import LEFTOVER_SECONDS, require_writable, write_file, write_folder
from properties.helpers.commands import run_to_end

# Writes 0 and then 1 to one place, again and again, and kills or stops the second writer at its
# first event, then at its second, and so on. After each, the place must hold one of them whole.
KILLED_WRITERS = """
import os, signal, sys
from itertools import count
from pathlib import Path
from harness.storage import write_file, write_folder
from properties.helpers.killed import at_event

folder, number, kind = Path(sys.argv[1]), signal.Signals[sys.argv[2]], sys.argv[3]
place, size = folder / "place", 1 << 20

def write(value):
    if kind == "file":
        write_file(place, bytes([value]) * size)
    else:
        names = ["a", "b/c", ("old", "new")[value]]
        write_folder(place, dict.fromkeys(names, bytes([value]) * size))

def read():
    assert [file.name for file in folder.iterdir() if file.name[0] != "."] == ["place"]
    files = [place] if kind == "file" else [file for file in place.rglob("*") if file.is_file()]
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
        at_event(event, folder, number)
        write(1)
        os._exit(0)
    _, status = os.waitpid(child, os.WUNTRACED)
    if os.WIFEXITED(status):
        break
    print(placed := read())
    # A third writer comes between; a stopped one must still succeed when it continues.
    write(0)
    assert read() == 0
    if os.WIFSTOPPED(status):
        os.kill(child, signal.SIGCONT)
        assert os.waitpid(child, 0)[1] == 0
        assert read() == 1 - placed
        write(0)
drafts = [file for file in folder.iterdir() if file.name[0] == "."]
assert (not drafts) == (number == signal.SIGSTOP), drafts
"""


@pytest.mark.slow
@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_writer_that_is_killed_or_stopped_at_any_moment_leaves_the_old_or_the_new_content(
    tmp_path: Path, kind: str, signal: str
) -> None:
    done = run_to_end(
        sys.executable, "-c", KILLED_WRITERS, tmp_path / "new" / "folder", signal, kind
    )
    assert done.returncode == 0, done.stderr
    # Each file has an event before which the old content must still be there.
    assert done.stdout.count("0") >= (2 if kind == "file" else 4)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_of_several_writers_at_once_one_leaves_its_whole_content(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier, place = threading.Barrier(4), tmp_path / "place"
    method = "replace" if kind == "file" else "rename"
    move = getattr(Path, method)

    def move_together(draft: Path, to: Path) -> Path:
        # Every writer has written its draft before any of them moves it.
        if draft not in waited:
            waited.add(draft)
            barrier.wait(60)
        new: Path = move(draft, to)
        return new

    waited: set[Path] = set()
    monkeypatch.setattr(Path, method, move_together)

    def write(content: bytes) -> None:
        if kind == "file":
            write_file(place, content)
        else:
            write_folder(place, {"a": content, "b": content})

    contents = [bytes([n]) * 1000 for n in range(barrier.parties)]
    with ThreadPoolExecutor(barrier.parties) as writers:
        list(writers.map(write, contents))
    files = [place] if kind == "file" else [place / "a", place / "b"]
    (content,) = {file.read_bytes() for file in files}
    assert content in contents
    assert [*tmp_path.iterdir()] == [place]


@pytest.mark.parametrize("call", ["renameat2", "rename"])
def test_a_folder_replaces_the_one_before_with_and_without_an_exchange_of_names(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if call == "rename":
        monkeypatch.setattr("harness.storage._exchange", lambda *_: False)
    for name in ("a", "b"):
        write_folder(tmp_path / "x", {name: b""})
        assert [file.name for file in (tmp_path / "x").iterdir()] == [name]
        assert [each.name for each in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(
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


def test_old_drafts_of_killed_writers_are_deleted_by_the_next_writer(tmp_path: Path) -> None:
    def make_older(name: str, seconds: float) -> None:
        moment = (tmp_path / name).stat().st_mtime - seconds
        os.utime(tmp_path / name, (moment, moment))

    for age, seconds in (("old", LEFTOVER_SECONDS + 60), ("new", 60.0)):
        (tmp_path / f".draft-{age}").mkdir()
        (tmp_path / f".draft-{age}-file").touch()
        make_older(f".draft-{age}", seconds)
        make_older(f".draft-{age}-file", seconds)
    write_folder(tmp_path / "x", {})
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        ".draft-new", ".draft-new-file", "x",
    ]  # fmt: skip


def test_a_folder_that_is_not_writable_is_refused_and_a_new_one_is_made(tmp_path: Path) -> None:
    require_writable(tmp_path / "new" / "folder")
    assert [*(tmp_path / "new" / "folder").iterdir()] == []
    # Even root cannot create a file there.
    for folder in (Path("/proc"), Path("/proc/new")):
        with pytest.raises(OSError, match=str(folder)):
            require_writable(folder)
