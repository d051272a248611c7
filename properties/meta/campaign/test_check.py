"""`check` and `repro` from end to end, as a newcomer calls them."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.cli import main, obey_signals
from harness.ranks.pool import RankPool
from properties.helpers.commands import IMPORTS
from properties.helpers.places import PLANTED
from properties.helpers.wait import eventually

pytest_plugins = ["properties.helpers.own_pool"]

SMALL = ("--sp", "2,1", "--dp", "1", "--dtype", "fp64")


@pytest.mark.usefixtures("own_pool")
def test_a_check_of_one_case_judges_the_notebooks_batch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "--cases", "1", *SMALL, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["cases"] == 1
    assert summary["verdict"] in ("EQUAL", "WITHIN")
    assert set(summary["candidates"]) == {"native-gather", "native-local"}


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_all_small_cases_are_counted_beforehand_and_the_last_line_says_that_all_of_them_passed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = ("--all-up-to", "3", "--sp", "2", "--dp", "1", "--loss", "token-mean")
    assert main(["check", "--candidate", "native-local", *small]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("all 84 cases of up to 3 tokens\n")
    assert printed.endswith("exit status 0: all 84 cases of up to 3 tokens passed\n")
    assert "bounds: rows 1-2; tokens a row 1-3; sp x dp 2x1; micro-batches 1-2;" in printed


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_the_first_small_case_that_fails_has_as_few_tokens_as_any(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = ("--all-up-to", "3", "--sp", "2", "--dp", "1", "--json", "--no-diagnose")
    assert main(["check", "--candidate", "mutants.B14", *small]) == 1
    found = json.loads(capsys.readouterr().out)
    (failure,) = found["candidates"]["mutants.B14"]["failures"]
    assert failure["case"].startswith("case/1 rows=2:11 ")
    assert found["campaign"]["up_to"] == 3
    # A row of 2 is the first batch with a label at a cut; 9 cases have a token and no label.
    assert found["cases"] == 10


@pytest.mark.usefixtures("own_pool")
def test_small_cases_that_leave_a_gradient_zero_are_not_enough(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = ("--all-up-to", "2", "--sp", "2", "--dp", "1", "--loss", "token-mean")
    assert main(["check", "--candidate", "native-local", *small]) == 3
    last_line = capsys.readouterr().out.splitlines()[-1]
    assert "no element of grad.layers.*.q, which was zero in all 15 cases" in last_line
    assert last_line.endswith("or raise --all-up-to")


BROKEN = """
from harness.candidates.own.native import LocalDialect

class Broken(LocalDialect):
    name = "broken"

    def reduce(self, model, rank):
        raise ValueError("no")

BROKEN = Broken()
"""


@pytest.mark.usefixtures("own_pool")
def test_a_fault_has_exit_status_3(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.py").write_text(BROKEN)
    line = "case/1 rows=3:111 sp=2"
    assert main(["repro", line, "--candidate", "broken.py:BROKEN"]) == 3
    assert "raised ValueError: no" in capsys.readouterr().out


TWO_BUGS = """
import torch

from harness.candidates.own.native import LocalDialect

class TwoBugs(LocalDialect):
    name = "two-bugs"

    def loss(self, case, batch, stream, nll_L, targets, rank):
        if case.micro_batches > 1:
            raise ValueError("no")
        return 2 * super().loss(case, batch, stream, nll_L, targets, rank)

TWO_BUGS = TwoBugs()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("keep_going", "judged"), [("2", 2), ("3", 6)])
@pytest.mark.usefixtures("own_pool")
def test_a_check_that_keeps_going_finds_the_second_bug_too(
    keep_going: str,
    judged: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.campaign.examine.SHRINK_SECONDS", 1.0)
    Path("two.py").write_text(TWO_BUGS)
    words = ["check", "--candidate", "two.py:TWO_BUGS", *SMALL, "--sp", "2", "--cases", "6"]
    words += ["--loss", "token-mean", "--set", "micro=1,2", "--no-diagnose", "--json"]
    assert main([*words, "--keep-going", keep_going]) == 1
    written = capsys.readouterr()
    (tally,) = json.loads(written.out)["candidates"].values()
    assert tally["judged"] == judged
    assert [failure["verdict"] for failure in tally["failures"]] == ["DIVERGED", "FAULT"]
    # Cases that fail like a known failure are counted.
    verdicts = tally["verdicts"]
    assert sum(tally["marks"].values()) == verdicts["DIVERGED"] + verdicts["FAULT"]
    assert "two.py:TWO_BUGS: cases that failed, by how\n" in written.err


def test_keep_going_refuses_a_number_below_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--keep-going", "0"]) == 2
    assert "--keep-going=0: use how many failures to look for" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_a_campaign_in_which_no_rank_needs_anything_of_another_is_a_fault(
    capsys: pytest.CaptureFixture[str],
) -> None:
    apart = f"{PLANTED / 'vacuous.py'}:ROWS_APART"
    assert main(["check", "--cases", "24", *SMALL, "--sp", "2", "--candidate", apart]) == 3
    closing = f"exit status 3: {apart} shared nothing: in none of 24 cases at sp > 1 did one rank "
    assert closing in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_a_log_shows_progress_and_each_failure_before_it_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.campaign.live.LOG_INTERVAL", 0.0)
    assert main(["check", "--cases", "4", *SMALL, "--candidate", "mutants.B101"]) == 1
    text = capsys.readouterr().out
    assert re.search(r"\nchecking: 1 of 4 cases in \d+ s, about \d+ s left\n", text)
    explanation = text.index("\nDIVERGED  candidate ")
    assert text.index("\nDIVERGED  mutants.B101  case/1 ") < explanation
    # All candidates failed, so the situations of the other cases are not known.
    assert "situations met" not in text
    assert text.splitlines()[-1].startswith("exit status 1: mutants.B101 is DIVERGED on case/1 ")


FUSSY = """
from harness.candidates.own.native import LocalDialect

class Fussy(LocalDialect):
    name = "fussy"

    def supports(self, case):
        return "one step only" if case.steps > 1 else None

FUSSY = Fussy()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_a_situation_that_every_candidate_refuses_is_not_met(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("fussy.py").write_text(FUSSY)
    command = ["check", "--cases", "20", *SMALL, "--json"]
    assert main([*command, "--candidate", "fussy.py:FUSSY"]) == 0
    alone = json.loads(capsys.readouterr().out)
    tally = alone["candidates"]["fussy.py:FUSSY"]
    # It was given others in place of the cases that it refuses.
    assert tally["judged"] == alone["cases"] == 20
    assert alone["refused"]["several steps"] == tally["verdicts"]["UNSUPPORTED"] > 0
    assert alone["situations"]["several steps"] == 0
    # Another candidate supports such cases; each of them counts once for both candidates.
    assert main([*command, "--candidate", "fussy.py:FUSSY", "--candidate", "native-local"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both["candidates"]["native-local"]["judged"] == 20
    assert 0 < both["situations"]["several steps"] <= both["refused"]["several steps"]


NO_TORCH = "import os, sys\nif 'HARNESS_SOCKET' in os.environ: sys.modules['torch'] = None\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [("check", "--cases", "3", *SMALL), ("golden", "verify"), ("mutants", "--sp", "2")]
)
def test_ranks_that_cannot_start_are_reported_once(
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main([*command, "--json"]) == 3
    written = capsys.readouterr()
    assert json.loads(written.out)["verdict"] == "FAULT"
    assert written.err.count("the supervisor of the ranks ended, exit status 1") == 1


WRITES_CASES = """
from pathlib import Path
from harness.candidates.own.native import LocalDialect

class WritesCases(LocalDialect):
    name = "writes-cases"

    def run(self, case, rank, emit):
        super().run(case, rank, emit)
        with Path("cases").open("a") as file:
            file.write(f"{case}\\n")

WRITES_CASES = WritesCases()
"""


@pytest.mark.slow
def test_an_interrupted_check_reports_the_cases_that_it_judged(tmp_path: Path) -> None:
    (tmp_path / "writes.py").write_text(WRITES_CASES)
    cases = tmp_path / "cases"
    name = "writes.py:WRITES_CASES"
    command = [sys.executable, "-m", "harness", "check", "--candidate", name, "--json"]
    # A shell starts background processes like this, with Ctrl-C ignored.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with subprocess.Popen(
        [*command, *SMALL, "--cases", "300"],
        cwd=tmp_path,
        env={**os.environ, **IMPORTS},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        signal.signal(signal.SIGINT, before)
        # So many lines that the first cases are judged: few are under way, on at most two ranks.
        assert eventually(lambda: cases.exists() and len(cases.read_text().splitlines()) >= 20)
        process.send_signal(signal.SIGINT)
        document = json.loads(process.communicate(timeout=30)[0])
    assert process.returncode == 130
    assert (document["ended"], document["verdict"]) == ("interrupted", "FAULT")
    tally = document["candidates"][name]
    assert 0 < tally["judged"] == document["cases"] < 300
    assert {*tally["verdicts"]} <= {"EQUAL", "WITHIN"}


def test_a_ctrl_c_while_the_ranks_end_loses_no_result(
    harness_pool: RankPool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def opened(*_: Any) -> Iterator[RankPool]:
        yield harness_pool
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.commands.examiner.open_pool", opened)
    assert main(["check", "--candidate", "native-local", *SMALL, "--cases", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cases"] == 5


@pytest.fixture
def signals_of_pytest(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the handlers that a command replaces."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals_of_pytest")
def test_sigterm_ends_a_command_as_ctrl_c_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["harness", "doctor"])
    monkeypatch.setattr("harness.doctor.examine", lambda: signal.raise_signal(signal.SIGTERM))
    assert main() == 130
    assert capsys.readouterr().err == "harness: interrupted; every rank is stopped\n"


@pytest.mark.usefixtures("signals_of_pytest")
def test_several_signals_at_once_raise_one_keyboard_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    obey_signals()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.raise_signal(number)
    monkeypatch.setattr("harness.cli.PATIENCE", -1.0)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.usefixtures("signals_of_pytest")
def test_a_ctrl_c_that_python_drops_in_a_finalizer_is_raised_again() -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    obey_signals()
    Finalized()
    with pytest.raises(KeyboardInterrupt):
        eventually(lambda: False)


@pytest.mark.slow
def test_a_limit_that_leaves_one_case_ends_the_check_as_a_fault(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "--cases", "50", "--limit", "0.01", *SMALL, "--json"]) == 3
    written = capsys.readouterr()
    document = json.loads(written.out)
    assert (document["ended"], document["cases"]) == ("limit", 1)
    assert "was not judged on enough of what was asked for: 1 of " in written.err
    assert "--limit ended the run; 1 case was judged" in written.err
    assert written.err.rstrip().endswith("Raise --limit")
    assert document["placement"] == {
        "device": "cpu",
        "devices": "cpu",
        "transport": "gloo",
        "ranks": "2",
        "torch": torch.__version__,
    }


WAITS_AT_IMPORT = """
import signal
from pathlib import Path

Path("begun").touch()
signal.pause()
"""
COMMAND = [sys.executable, "-m", "harness", "check", "--candidate", "never.py:MINE", "--json"]


@pytest.mark.slow
def test_a_check_that_is_interrupted_before_it_has_ranks_reports_no_case(
    tmp_path: Path,
) -> None:
    (tmp_path / "never.py").write_text(WAITS_AT_IMPORT)
    with subprocess.Popen(
        [*COMMAND, *SMALL],
        cwd=tmp_path,
        env={**os.environ, **IMPORTS},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert eventually((tmp_path / "begun").exists)
        process.send_signal(signal.SIGINT)
        document = json.loads(process.communicate(timeout=30)[0])
    assert process.returncode == 130
    assert (document["ended"], document["cases"], document["size"]) == ("interrupted", 0, 100)


def test_doctor_gives_a_reason_for_everything_that_will_not_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    for part in ("devices", "transports", "kernels", "processes"):
        for name, found in findings[part].items():
            assert found["usable"] or found["why"], name
