"""What earlier runs of `conformance` found is read, or refused before hours of work begin."""

import json
from pathlib import Path
from random import Random

import pytest

from harness.cli import main
from harness.commands.conformance import pages, read_results_in
from harness.conformance.document import FORMAT, NAME, BadResults
from properties.helpers.fuzzing import fuzz, mutants
from properties.helpers.places import ROOT


def document() -> str:
    """Two candidates and one release of those that we keep."""
    kept = json.loads((ROOT / "docs" / NAME).read_text())
    some = {
        name: dict(sorted(kept[name].items(), key=lambda each: len(str(each)))[:number])
        for name, number in (("candidates", 2), ("releases", 1))
    }
    return json.dumps({"format": FORMAT, **some})


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
    ("text", "said"),
    [
        ("{", "is not JSON; name another folder"),
        ("[]", "this version reads format 'conformance/1'; name another folder"),
        (
            '{"format": "conformance/1", "candidates": 3}',
            "candidates: expected `object`, got `int`; name another folder",
        ),
    ],
)
def test_what_is_no_file_of_results_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(BadResults) as refused:
        read_results_in(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path / NAME}: {said}")


def test_goldens_that_are_not_there_are_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = tmp_path / "nowhere"
    command = ["conformance", "twinkle", "--goldens", str(nowhere), "--out", str(tmp_path)]
    assert main(command) == 2
    said = f"harness: --goldens={nowhere}: store={nowhere}: No such file or directory\n"
    assert capsys.readouterr().err == said
