"""Goldens keep their bytes when they are made again, and change only if the user accepts it."""

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

# Multiplies what both references compute, as if a processor or the definition had changed.
ScaleReferences = Callable[[float], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    stored_in(tmp_path / "golden")
    return tmp_path / "golden"


@pytest.fixture
def scale_references(monkeypatch: pytest.MonkeyPatch) -> ScaleReferences:
    def scale(factor: float) -> None:
        def compute_scaled(case: Case, *_: object) -> Trace:
            return scaled(compute(case), factor)

        monkeypatch.setattr("harness.golden.generate.compute", compute_scaled)
        monkeypatch.setattr("harness.golden.generate.rowwise", compute_scaled)

    return scale


def golden(command: str, folder: Path, *options: str) -> int:
    return main(["golden", command, "--store", str(folder), *options])


def test_generating_again_changes_no_byte(folder: Path) -> None:
    before = on_disk(folder)
    assert golden("generate", folder) == 0
    assert golden("generate", folder, "--accept", "--reason", "none") == 0
    assert on_disk(folder) == before


def test_generating_from_nothing_but_vectors_gives_the_same_bytes_twice(folder: Path) -> None:
    assert golden("generate", folder, "--accept") == 0
    shutil.rmtree(folder / "tensors")
    (folder / FILE).unlink()
    assert golden("generate", folder) == 0
    first = {path: data for path, (data, _) in on_disk(folder).items()}
    shutil.rmtree(folder / "tensors")
    (folder / FILE).unlink()
    assert golden("generate", folder) == 0
    assert {path: data for path, (data, _) in on_disk(folder).items()} == first


def test_bits_that_drift_are_stored_only_if_accepted(
    folder: Path, scale_references: ScaleReferences, capsys: pytest.CaptureFixture[str]
) -> None:
    before = on_disk(folder)
    scale_references(1 + 4e-16)
    assert golden("generate", folder) == 0
    assert on_disk(folder) == before
    assert "two-rows: environment drift: " in capsys.readouterr().out
    assert golden("generate", folder, "--accept") == 0
    assert on_disk(folder) != before


@pytest.mark.parametrize("options", [[], ["--accept"], ["--reason", "I want to"]])
def test_a_semantic_change_is_refused_unless_it_is_accepted_with_a_reason(
    options: list[str],
    folder: Path,
    scale_references: ScaleReferences,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = on_disk(folder)
    scale_references(1 + 1e-9)
    assert golden("generate", folder, *options) == 1
    output = capsys.readouterr().out
    assert "two-rows: semantic change: " in output
    assert "3 goldens would change their meaning; nothing is written" in output
    assert on_disk(folder) == before


def test_the_reason_of_an_accepted_change_is_stored(
    folder: Path, scale_references: ScaleReferences
) -> None:
    scale_references(2.0)
    assert golden("generate", folder, "--accept", "--reason", "the loss was halved") == 0
    listed = json.loads((folder / FILE).read_text())["goldens"]
    assert {entry["reason"] for entry in listed.values()} == {"the loss was halved"}
    assert golden("diff", folder) == 0


@pytest.mark.parametrize(
    ("factor", "status", "message"),
    [
        (1.0, 0, "3 of 3 goldens come out the same in every bit"),
        (1 + 4e-16, 0, "environment drift"),
        (1 + 1e-12, 1, "semantic change"),
    ],
)
def test_diff_distinguishes_drift_from_a_semantic_change(
    factor: float,
    status: int,
    message: str,
    folder: Path,
    scale_references: ScaleReferences,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scale_references(factor)
    assert golden("diff", folder) == status
    assert message in capsys.readouterr().out


def test_no_golden_is_made_if_two_references_disagree(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.golden.generate.rowwise", lambda _: Trace())
    line = CASES["two-rows"]
    assert golden("add", folder, "new", line, "--comment", "x") == 4
    assert "new: the padded reference and the row-wise one differ" in capsys.readouterr().err


def test_an_added_golden_is_whole_and_listed(
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
    ("words", "refusal"),
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
def test_a_wrong_name_case_or_option_of_add_is_refused_and_nothing_is_written(
    words: list[str], refusal: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = on_disk(folder)
    assert golden("add", folder, *words) == 2
    assert refusal in capsys.readouterr().err
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
    scale_references: ScaleReferences,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scale_references(1.5)
    before = on_disk(folder)
    with full_disk():
        assert main(["golden", *command, "--store", str(folder)]) == 4
    refusal = f"store={folder}: cannot be written: File too large; nothing in it was changed"
    assert capsys.readouterr().err == f"harness: {refusal}\n"
    assert on_disk(folder) == before
    assert not list(folder.glob(".*"))
