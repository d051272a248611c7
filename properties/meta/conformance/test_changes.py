"""What is otherwise than last week is told in a few lines, and nothing else."""

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


def told(change: Change) -> list[str]:
    before = read(DOCS)
    now = deepcopy(before)
    # The newest release has its version in the name.
    now["candidates"] = {f"{STEP}@newest": now["candidates"][STEP]}
    change(now["candidates"][f"{STEP}@newest"])
    return changes(before, now).splitlines()[2:]


def upgraded(each: dict[str, Any]) -> None:
    each["version"] = "9.0"


def mended(each: dict[str, Any]) -> None:
    for found in each["listed"].values():
        found["looks"] = "EQUAL"


def broken(each: dict[str, Any]) -> None:
    each["failures"].append({"looks": "segment-leak", "count": 3})


def refusing(each: dict[str, Any]) -> None:
    stage = each["stages"]["sp 2"]
    stage["refused"]["head_dim=7: too odd"] = sum(stage["verdicts"].values()) * 10


def unwired(each: dict[str, Any]) -> None:
    each["wiring"] = "at sp 1 it is not plain training"


def test_what_is_the_same_is_not_told_and_neither_is_an_upgrade_that_changes_nothing() -> None:
    for change in (lambda _: None, upgraded):
        assert told(change) == ["Nothing is new, mended or newly refused."]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (mended, "is not seen any more"),
        (broken, "new: segment-leak, not listed"),
        (refusing, "newly refused: head_dim"),
        (unwired, "wiring: at sp 1 it is not plain training"),
    ],
)
def test_what_is_new_mended_or_newly_refused_is_a_line(change: Change, says: str) -> None:
    (line,) = told(change)
    assert line.startswith(f"- `{STEP}` ")
    assert says in line


def test_a_step_that_was_not_there_is_told_with_what_it_does() -> None:
    before: dict[str, Any] = {"candidates": {}, "releases": {}, "findings": {}}
    now = {**before, "candidates": {STEP: read(DOCS)["candidates"][STEP]}}
    assert "new: " in changes(before, now)


@pytest.mark.parametrize(
    ("text", "why"),
    [(None, "cannot be read"), ("{", "is not JSON"), ('{"format": "other"}', "reads format")],
)
def test_a_document_that_is_none_is_refused_before_any_rank_starts(
    text: str | None, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "last.json"
    if text is not None:
        file.write_text(text)
    assert main(["conformance", "deepspeed", "--since", str(file), "--out", str(tmp_path)]) == 2
    assert why in capsys.readouterr().err


def test_a_sweep_is_compared_with_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "last.json"
    document.write_text(json.dumps({"format": "conformance/1"}))
    assert main(["conformance", "deepspeed", "--since", str(document), "--versions", "1"]) == 2
    assert "--since: compares what is examined" in capsys.readouterr().err


def test_a_folder_that_cannot_be_read_is_named_and_no_results_are_blamed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise BadFolder("toy/known.toml: is half written")

    monkeypatch.setattr("harness.commands.conformance.pages", broken)
    assert main(["conformance", "deepspeed", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "harness: toy/known.toml: is half written\n"


@pytest.mark.parametrize("order", [["a.one", "a.two"], ["a.two", "a.one"]])
def test_a_bug_that_two_candidates_show_is_told_as_of_the_last_whoever_is_done_first(
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
            listed = {"bug": {**shown, "record": {"verdict": "KNOWN", "candidate": name}}}
            yield name, {**before, "listed": listed}

    for name, stands_in in {
        "open_engine": opened,
        "run_all": run_all,
        "wanted": lambda *_, **__: ["a.one", "a.two"],
        "pages": lambda *_: {},
        "_status": lambda *_, **__: 0,
    }.items():
        monkeypatch.setattr(conformance, name, stands_in)
    monkeypatch.setattr("harness.conformance.finding_record", lambda _, record: record)
    assert main(["conformance", "--out", str(tmp_path)]) == 0
    assert read(tmp_path)["findings"]["a bug"]["candidate"] == "a.two"
