"""A store is the old one or the new one, at whatever moment its writer dies."""

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
from properties.helpers.commands import ran
from properties.helpers.stores import CASES, files, stored_in
from properties.helpers.wait import PATIENCE


@pytest.mark.slow
def test_killed_at_any_moment_it_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    run = ran(sys.executable, "-m", "properties.helpers.killed", tmp_path / "golden")
    assert run.returncode == 0, run.stderr
    found = Counter(run.stdout.splitlines())
    assert set(found) == {"old", "new"}, run.stdout
    # Three vectors, three files of tensors, the manifest; each is written, and each is moved.
    assert sum(found.values()) > 14
    assert min(found.values()) > 5


def test_what_a_killed_writer_had_begun_is_gone_with_the_next(tmp_path: Path) -> None:
    store = stored_in(tmp_path)
    (tmp_path / ".draft-left" / "vectors").mkdir(parents=True)
    (tmp_path / ".draft-left" / "vectors" / "half.json").write_text("{")
    assert examine(store.files())[1] == []
    store.write({})
    assert not list(tmp_path.glob(".*"))


def test_a_reader_waits_for_the_writer_and_sees_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stored_in(tmp_path)
    other = {name: data + b" " for name, data in files().items()}
    half_done, waits = threading.Event(), threading.Event()

    def committed(place: Path, changed: dict[str, bytes]) -> None:
        write_folder(place, changed)
        half_done.set()
        assert waits.wait(PATIENCE)

    monkeypatch.setattr("harness.golden.store.write_folder", committed)
    # What a reader does that finds it held.
    monkeypatch.setattr("harness.golden.store.time.sleep", lambda _: waits.set())
    with ThreadPoolExecutor(1) as writing:
        written = writing.submit(store.write, other)
        assert half_done.wait(PATIENCE)
        seen = store.files()
        written.result()
    assert waits.is_set()
    assert seen == other


def test_who_holds_a_store_for_too_long_is_not_waited_for(
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


def test_of_three_who_add_at_once_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_in(tmp_path)
    together, make = threading.Barrier(3), generate.make

    def made_together(*given: Any) -> Golden:
        # All have seen the store as it was before any of them writes.
        together.wait(60)
        return make(*given)

    monkeypatch.setattr(generate, "make", made_together)
    names = ("first", "second", "third")
    add = ["golden", "add", "--store", str(tmp_path), "--comment", "It is small."]
    with ThreadPoolExecutor(3) as adding:
        statuses = list(adding.map(lambda name: main([*add, name, CASES["a-window"]]), names))
    assert statuses == [0, 0, 0]
    goldens, damages = examine(Store(tmp_path).files())
    assert damages == []
    assert set(goldens) == {*CASES, *names}


def test_who_generates_does_not_undo_what_was_added_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, remake = stored_in(tmp_path), generate.remake

    def remade_meanwhile(*given: Any, **named: Any) -> Any:
        remade = remake(*given, **named)
        store.write({**files(), "vectors/late.json": b"{}"})
        return replace(remade, written=list(remade.goldens))

    monkeypatch.setattr(generate, "remake", remade_meanwhile)
    assert main(["golden", "generate", "--store", str(tmp_path)]) == 4
    assert "somebody else has changed the store meanwhile" in capsys.readouterr().err
    assert "vectors/late.json" in store.files()
