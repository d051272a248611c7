"""Changes since earlier results are reported in a few lines, and nothing else is."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from harness.candidates.published.library import BadFolder
from harness.cli import main
from harness.commands import conformance
from harness.conformance import changes, read
from properties.helpers.places import ROOT

DOCS = ROOT / "docs"
STEP = "deepspeed.alst"
Change = Any


def reported(change: Change) -> list[str]:
    """Change the record of one step; return the lines of the page about it."""
    before = read(DOCS)
    now = deepcopy(before)
    # A step of the newest release has the release in its name.
    now["candidates"] = {f"{STEP}@newest": now["candidates"][STEP]}
    change(now["candidates"][f"{STEP}@newest"])
    return changes(before, now).splitlines()[2:]


def upgraded(record: dict[str, Any]) -> None:
    record["version"] = "9.0"


def mended(record: dict[str, Any]) -> None:
    for found in record["listed"].values():
        found["looks"] = "EQUAL"


def broken(record: dict[str, Any]) -> None:
    record["failures"].append({"looks": "segment-leak", "count": 3})


def refusing(record: dict[str, Any]) -> None:
    stage = record["stages"]["sp 2"]
    stage["refused"]["head_dim=7: too odd"] = sum(stage["verdicts"].values()) * 10


def unwired(record: dict[str, Any]) -> None:
    record["wiring"] = "at sp 1 it is not plain training"


def test_a_release_that_changes_no_result_is_not_reported() -> None:
    for change in (lambda _: None, upgraded):
        assert reported(change) == ["Nothing is new, mended or newly refused."]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (mended, "is not seen any more"),
        (broken, "new: segment-leak, not listed"),
        (refusing, "newly refused: head_dim"),
        (unwired, "wiring: at sp 1 it is not plain training"),
    ],
)
def test_a_new_failure_a_mended_bug_or_a_new_refusal_is_one_line(
    change: Change, message: str
) -> None:
    (line,) = reported(change)
    assert line.startswith(f"- `{STEP}` ")
    assert message in line


def test_a_step_that_is_new_in_the_results_is_reported_with_its_outcome() -> None:
    before: dict[str, Any] = {"candidates": {}, "releases": {}, "findings": {}}
    now = {**before, "candidates": {STEP: read(DOCS)["candidates"][STEP]}}
    assert "new: " in changes(before, now)


@pytest.mark.parametrize(
    ("text", "reason"),
    [(None, "cannot be read"), ("{", "is not JSON"), ('{"format": "other"}', "reads format")],
)
def test_a_file_that_is_no_document_is_refused_before_any_rank_starts(
    text: str | None, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "last.json"
    if text is not None:
        file.write_text(text)
    assert main(["conformance", "deepspeed", "--since", str(file), "--out", str(tmp_path)]) == 2
    assert reason in capsys.readouterr().err


def test_a_sweep_of_releases_is_not_compared_with_earlier_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "last.json"
    document.write_text(json.dumps({"format": "conformance/1"}))
    assert main(["conformance", "deepspeed", "--since", str(document), "--versions", "1"]) == 2
    assert "--since: compares what is examined" in capsys.readouterr().err


def test_a_damaged_package_folder_is_named_instead_of_the_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_damage(*_: object) -> None:
        raise BadFolder("toy/known.toml: is half written")

    monkeypatch.setattr("harness.commands.conformance.pages", raise_damage)
    assert main(["conformance", "deepspeed", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "harness: toy/known.toml: is half written\n"


@pytest.mark.parametrize("order", [["a.one", "a.two"], ["a.two", "a.one"]])
def test_a_bug_of_two_candidates_keeps_the_finding_of_the_last_in_order(
    order: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = read(DOCS)["candidates"][STEP]
    shown = next(iter(before["listed"].values()))

    @contextmanager
    def opened(*_: Any) -> Iterator[None]:
        yield None

    def run_all(names: list[str], _engine: None) -> Iterator[tuple[str, dict[str, Any]]]:
        assert names == ["a.one", "a.two"]
        for name in order:
            found = {**shown, "record": {"verdict": "KNOWN", "candidate": name}}
            listed = {"bug": found, "graded C": found}
            yield name, {**before, "listed": listed}

    for name, stands_in in {
        "open_engine": opened,
        "run_all": run_all,
        "_choose_candidates": lambda *_, **__: ["a.one", "a.two"],
        "pages": lambda *_: {},
        "_status_of": lambda *_, **__: 0,
    }.items():
        monkeypatch.setattr(conformance, name, stands_in)
    monkeypatch.setattr("harness.conformance.finding_record", lambda _, record: record)
    monkeypatch.setattr("harness.conformance.finding_names", lambda: {"a bug"})
    assert main(["conformance", "--out", str(tmp_path)]) == 0
    assert read(tmp_path)["findings"]["a bug"]["candidate"] == "a.two"
    # What is no finding gets no page with pictures either.
    assert read(tmp_path)["findings"].keys() == {"a bug"}
