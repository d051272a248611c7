"""`check` and `repro` from end to end, as a newcomer calls them."""

import contextlib
import json
from pathlib import Path

import pytest

from harness.cli import main
from harness.ranks.pool import RankPool
from properties.outside import DOUBLED

SMALL = ("--sp", "2,1", "--dp", "1", "--dtype", "fp64")


def test_a_run_of_one_case_is_the_notebooks_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--cases", "1", *SMALL, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["cases"] == 1
    assert summary["verdict"] in ("EQUAL", "WITHIN")
    assert set(summary["candidates"]) == {"native-gather", "native-local"}


def test_a_failure_is_kept_replayed_and_has_exit_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text(DOUBLED)
    assert main(["check", "--cases", "5", *SMALL, "--candidate", "broken.py:DOUBLED"]) == 1
    said = capsys.readouterr().out
    assert "looks   gradient-times-sp: every gradient is 2 of the reference = sp" in said
    bundle = said[said.index("bundle") :].split()[1]
    assert main(["repro", bundle]) == 1
    again = capsys.readouterr().out
    assert "DIVERGED  candidate broken.py:DOUBLED" in again
    assert "looks   gradient-times-sp: every gradient is 2 of the reference = sp" in again


def test_a_fault_has_exit_status_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text(DOUBLED.replace("parameter.grad *= 2", "raise ValueError('no')"))
    line = "case/1 rows=3:111 sp=2"
    assert main(["repro", line, "--candidate", "broken.py:DOUBLED"]) == 3
    assert "raised ValueError: no" in capsys.readouterr().out


FUSSY = """
from harness.candidates.native import LocalDialect

class Fussy(LocalDialect):
    name = "fussy"

    def supports(self, case):
        return "one step only" if case.steps > 1 else None

FUSSY = Fussy()
"""


def test_a_corner_that_no_candidate_could_enter_was_not_met(
    harness_pool: RankPool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "harness.commands.check.open_pool", lambda *_: contextlib.nullcontext(harness_pool)
    )
    Path("fussy.py").write_text(FUSSY)
    command = ["check", "--cases", "40", *SMALL, "--json"]
    assert main([*command, "--candidate", "fussy.py:FUSSY"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["candidates"]["fussy.py:FUSSY"]["verdicts"]["UNSUPPORTED"] > 0
    assert alone["situations"]["several steps"] == 0
    # Another candidate can, and then it was met, once a case.
    assert main([*command, "--candidate", "fussy.py:FUSSY", "--candidate", "native-local"]) == 0
    both = json.loads(capsys.readouterr().out)
    refused = both["candidates"]["fussy.py:FUSSY"]["verdicts"]["UNSUPPORTED"]
    assert both["situations"]["several steps"] == refused


def test_doctor_says_why_for_everything_that_will_not_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    for part in ("devices", "transports", "kernels", "processes"):
        for name, found in findings[part].items():
            assert found["usable"] or found["why"], name
