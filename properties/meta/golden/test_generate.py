"""Goldens are made the same each time, keep their bits, and change their meaning only if told."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.case import Case
from harness.cli import main
from harness.golden import examine
from harness.golden.generate import compute
from harness.golden.manifest import FILE
from harness.trace import Trace
from properties.helpers.full import full_disk
from properties.helpers.stores import CASES, on_disk, stored_in
from properties.helpers.traces import scaled

# The references differ by the same: as if the definition had changed, or a processor.
Change = Callable[[float], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    stored_in(tmp_path / "golden")
    return tmp_path / "golden"


@pytest.fixture
def references_times(monkeypatch: pytest.MonkeyPatch) -> Change:
    def change(times: float) -> None:
        def off(case: Case, *_: object) -> Trace:
            return scaled(compute(case), times)

        monkeypatch.setattr("harness.golden.generate.compute", off)
        monkeypatch.setattr("harness.golden.generate.rowwise", off)

    return change


def golden(command: str, folder: Path, *options: str) -> int:
    return main(["golden", command, "--store", str(folder), *options])


def test_generating_again_changes_no_byte(folder: Path) -> None:
    before = on_disk(folder)
    assert golden("generate", folder) == 0
    assert golden("generate", folder, "--accept", "--reason", "none") == 0
    assert on_disk(folder) == before


def test_from_nothing_but_vectors_it_makes_the_same_bytes(folder: Path) -> None:
    assert golden("generate", folder, "--accept") == 0
    shutil.rmtree(folder / "tensors")
    (folder / FILE).unlink()
    assert golden("generate", folder) == 0
    once = {path: data for path, (data, _) in on_disk(folder).items()}
    shutil.rmtree(folder / "tensors")
    (folder / FILE).unlink()
    assert golden("generate", folder) == 0
    assert {path: data for path, (data, _) in on_disk(folder).items()} == once


def test_last_bits_that_move_stay_as_they_were(
    folder: Path, references_times: Change, capsys: pytest.CaptureFixture[str]
) -> None:
    before = on_disk(folder)
    references_times(1 + 4e-16)
    assert golden("generate", folder) == 0
    assert on_disk(folder) == before
    assert "two-rows: environment drift: " in capsys.readouterr().out
    assert golden("generate", folder, "--accept") == 0
    assert on_disk(folder) != before


@pytest.mark.parametrize("options", [[], ["--accept"], ["--reason", "I want to"]])
def test_another_meaning_is_refused_unless_it_is_accepted_with_a_reason(
    options: list[str],
    folder: Path,
    references_times: Change,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = on_disk(folder)
    references_times(1 + 1e-9)
    assert golden("generate", folder, *options) == 1
    said = capsys.readouterr().out
    assert "two-rows: semantic change: " in said
    assert "3 goldens would change their meaning; nothing is written" in said
    assert on_disk(folder) == before


def test_an_accepted_change_keeps_its_reason(folder: Path, references_times: Change) -> None:
    references_times(2.0)
    assert golden("generate", folder, "--accept", "--reason", "the loss was halved") == 0
    listed = json.loads((folder / FILE).read_text())["goldens"]
    assert {entry["reason"] for entry in listed.values()} == {"the loss was halved"}
    assert golden("diff", folder) == 0


@pytest.mark.parametrize(
    ("times", "status", "said"),
    [
        (1.0, 0, "3 of 3 goldens come out the same in every bit"),
        (1 + 4e-16, 0, "environment drift"),
        (1 + 1e-12, 1, "semantic change"),
    ],
)
def test_diff_tells_drift_from_a_change_of_meaning(
    times: float,
    status: int,
    said: str,
    folder: Path,
    references_times: Change,
    capsys: pytest.CaptureFixture[str],
) -> None:
    references_times(times)
    assert golden("diff", folder) == status
    assert said in capsys.readouterr().out


def test_two_references_that_disagree_make_no_golden(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.golden.generate.rowwise", lambda _: Trace())
    line = CASES["two-rows"]
    assert golden("add", folder, "new", line, "--comment", "x") == 4
    assert "new: the padded reference and the row-wise one differ" in capsys.readouterr().err


def test_what_is_added_is_listed_and_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "fresh"
    line = CASES["a-window"]
    assert golden("add", place, "mine", line, "--comment", "Mine.", "--hunts", "B57,B58") == 0
    goldens, damages = examine(
        {p.relative_to(place).as_posix(): d for p, (d, _) in on_disk(place).items()}
    )
    assert damages == []
    assert goldens["mine"].vector.hunts == ("B57", "B58")
    capsys.readouterr()
    assert golden("list", place, "--json") == 0
    (listed,) = json.loads(capsys.readouterr().out)["goldens"]
    assert (listed["name"], listed["comment"]) == ("mine", "Mine.")
    assert listed["made"]["torch"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["Bad_Name", "case/1 rows=2:11 sp=1", "--comment", "x"], "NAME=Bad_Name: use a-z"),
        (["ok", "case/1 rows=2:12 sp=1", "--comment", "x"], "rows"),
        (["ok", "case/1 rows=2:11 sp=1", "--comment", " "], "--comment: say what is peculiar"),
        (
            ["ok", "case/1 rows=2:11 sp=1", "--comment", "x", "--hunts", "B999"],
            "--hunts=B999: there is no such mutant; near: ",
        ),
        (["two-rows", CASES["two-rows"], "--comment", "x"], "NAME=two-rows: is there; replace"),
        (
            ["ok", "case/1 rows=2:11 sp=1 dtype=bf16", "--comment", "x"],
            "dtype=bf16: a golden holds what is computed in fp64",
        ),
    ],
)
def test_what_cannot_be_added_is_refused_and_nothing_is_written(
    words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = on_disk(folder)
    assert golden("add", folder, *words) == 2
    assert said in capsys.readouterr().err
    assert on_disk(folder) == before


@pytest.mark.parametrize(
    "command",
    [
        ("add", "new", "case/1 rows=2:11 sp=2", "--comment", "It is short."),
        ("generate", "--accept", "--reason", "the definition changed"),
    ],
)
def test_on_a_full_disk_a_store_stays_as_it_was_and_no_draft_is_left(
    command: tuple[str, ...],
    folder: Path,
    references_times: Change,
    capsys: pytest.CaptureFixture[str],
) -> None:
    references_times(1.5)
    before = on_disk(folder)
    with full_disk():
        assert main(["golden", *command, "--store", str(folder)]) == 4
    said = f"store={folder}: cannot be written: File too large; nothing in it was changed"
    assert capsys.readouterr().err == f"harness: {said}\n"
    assert on_disk(folder) == before
    assert not list(folder.glob(".*"))
