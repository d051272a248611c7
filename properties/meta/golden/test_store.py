"""A store is read and written whole, also if a writer is killed or several work at once."""

import fcntl
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.golden import BadGolden, Golden, Store, examine, generate
from harness.storage import write_folder
from properties.helpers.commands import run_to_end
from properties.helpers.stores import CASES, files, stored_in
from properties.helpers.wait import PATIENCE


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_leaves_the_old_store_or_the_new_one(
    tmp_path: Path,
) -> None:
    run = run_to_end(sys.executable, "-m", "properties.helpers.killed", tmp_path / "golden")
    assert run.returncode == 0, run.stderr
    found = Counter(run.stdout.splitlines())
    assert set(found) == {"old", "new"}, run.stdout
    # Three vectors, three files of tensors and the manifest are each written, and then moved.
    assert sum(found.values()) > 14
    assert min(found.values()) > 5


def test_the_next_writer_removes_the_draft_of_a_killed_one(tmp_path: Path) -> None:
    store = stored_in(tmp_path)
    (tmp_path / ".draft-left" / "vectors").mkdir(parents=True)
    (tmp_path / ".draft-left" / "vectors" / "half.json").write_text("{")
    assert examine(store.files())[1] == []
    store.write({})
    assert not list(tmp_path.glob(".*"))


def test_a_reader_waits_for_a_writer_and_then_sees_all_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stored_in(tmp_path)
    other = {name: data + b" " for name, data in files().items()}
    half_written, reader_waits = threading.Event(), threading.Event()

    def write_and_pause(place: Path, changed: dict[str, bytes]) -> None:
        write_folder(place, changed)
        half_written.set()
        assert reader_waits.wait(PATIENCE)

    monkeypatch.setattr("harness.golden.store.write_folder", write_and_pause)
    # A reader sleeps when it finds the store locked.
    monkeypatch.setattr("harness.golden.store.time.sleep", lambda _: reader_waits.set())
    with ThreadPoolExecutor(1) as writer:
        writing = writer.submit(store.write, other)
        assert half_written.wait(PATIENCE)
        seen = store.files()
        writing.result()
    assert reader_waits.is_set()
    assert seen == other


def test_a_reader_gives_up_if_the_store_is_locked_for_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.golden.store.PATIENCE", 0.1)
    store = stored_in(tmp_path)
    with (
        store._locked(fcntl.LOCK_EX),
        pytest.raises(BadGolden, match=r"another process has held it for 0\.1 s"),
    ):
        Store(tmp_path).files()


def test_a_file_too_large_to_be_a_golden_is_not_read(tmp_path: Path) -> None:
    store = stored_in(tmp_path)
    with (tmp_path / "tensors" / "huge").open("wb") as huge:
        huge.truncate(1 << 30)
    with pytest.raises(BadGolden, match="tensors/huge: has 1073741824 bytes; use"):
        store.files()


def test_three_goldens_that_are_added_at_once_are_all_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_in(tmp_path)
    barrier, make = threading.Barrier(3), generate.make

    def make_together(*arguments: Any) -> Golden:
        # All three have read the store before the first of them writes.
        barrier.wait(60)
        return make(*arguments)

    monkeypatch.setattr(generate, "make", make_together)
    names = ("first", "second", "third")
    add = ["golden", "add", "--store", str(tmp_path), "--comment", "It is small."]
    with ThreadPoolExecutor(3) as threads:
        statuses = list(threads.map(lambda name: main([*add, name, CASES["a-window"]]), names))
    assert statuses == [0, 0, 0]
    goldens, damages = examine(Store(tmp_path).files())
    assert damages == []
    assert set(goldens) == {*CASES, *names}


def test_generate_refuses_to_overwrite_what_was_added_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, remake = stored_in(tmp_path), generate.remake

    def remake_while_another_adds(*arguments: Any, **options: Any) -> Any:
        remade = remake(*arguments, **options)
        store.write({**files(), "vectors/late.json": b"{}"})
        return replace(remade, written=list(remade.goldens))

    monkeypatch.setattr(generate, "remake", remake_while_another_adds)
    assert main(["golden", "generate", "--store", str(tmp_path)]) == 4
    assert "somebody else has changed the store meanwhile" in capsys.readouterr().err
    assert "vectors/late.json" in store.files()
