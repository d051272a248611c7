"""Results of earlier runs of `conformance` are read whole, or refused before any work begins."""

import json
from pathlib import Path
from random import Random

import pytest

from harness.cli import main
from harness.commands.conformance import pages, read_goldens, read_results_in
from harness.conformance.document import FORMAT, NAME, BadResults
from properties.helpers.fuzzing import fuzz, mutants
from properties.helpers.places import ROOT


def document() -> str:
    """Return the results of the project with two candidates and one release only."""
    results = json.loads((ROOT / "docs" / NAME).read_text())
    shortest = {
        name: dict(sorted(results[name].items(), key=lambda item: len(str(item)))[:number])
        for name, number in (("candidates", 2), ("releases", 1))
    }
    return json.dumps({"format": FORMAT, **shortest})


@pytest.mark.slow
@pytest.mark.parametrize("count", [300, pytest.param(100_000, marks=pytest.mark.long)])
def test_mutated_results_become_pages_or_are_refused(count: int, tmp_path: Path) -> None:
    def decode(data: bytes) -> None:
        (tmp_path / NAME).write_bytes(data)
        for text in pages(read_results_in(tmp_path), tmp_path).values():
            text.encode()

    seen = fuzz(decode, mutants(document(), Random(0)), BadResults, count)
    assert seen["accepted"] > count // 20
    assert seen["refused"] > count // 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON; name another folder"),
        ("[]", "this version reads format 'conformance/1'; name another folder"),
        (
            '{"format": "conformance/1", "candidates": 3}',
            "candidates: expected `object`, got `int`; name another folder",
        ),
    ],
)
def test_a_file_that_holds_no_results_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(BadResults) as refused:
        read_results_in(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path / NAME}: {message}")


def test_a_golden_store_that_does_not_exist_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = tmp_path / "nowhere"
    command = ["conformance", "twinkle", "--goldens", str(nowhere), "--out", str(tmp_path)]
    assert main(command) == 2
    message = f"harness: --goldens={nowhere}: store={nowhere}: No such file or directory\n"
    assert capsys.readouterr().err == message


def test_in_a_folder_without_goldens_none_is_judged_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_goldens(None) == {}
    message = "harness: no golden is judged; --goldens names a store of them\n"
    assert capsys.readouterr().err == message
    assert read_goldens(ROOT / "golden")
