"""The pytest plugin, in sessions of small suites."""

import re
from pathlib import Path

import pytest

from harness.case import parse
from harness.compare import (
    Comparison,
    KeyResult,
    Verdict,
    fault_comparison,
    unsupported_comparison,
)
from harness.compare.budget import LEAN_LEAST
from harness.failure.bundle import read_bundle

# Imported here because an inner session forgets its modules, and torch can be loaded only once.
from harness.judge import Job, Session
from harness.plugin.current_test import ON_PURPOSE
from harness.report.brief import COLUMNS
from harness.trace import Fault, Kind
from properties.helpers.comparisons import comparison_with
from properties.helpers.judging import comparison_of

pytest_plugins = ["pytester"]

SUITE = """
import pytest
from harness.case import parse

@pytest.mark.parametrize("rows", ["3:111,4:1011", "5:11111"])
def test_sharded_is_plain(harness_evaluate, rows):
    comparison = harness_evaluate(parse(f"case/1 rows={rows} sp=2"))
    assert comparison.verdict.passed

def test_the_candidate_is_the_one_named(harness_candidate):
    assert harness_candidate == "native-local"
"""
OPTIONS = ("--harness-candidate", "native-local", "--harness-ranks", "2", "-p", "no:cacheprovider")


def test_a_session_has_one_pool_and_prints_a_summary(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["2 cases judged in 1 launch, * elements examined: [12] *"])


# No machine that runs these tests has this device.
NEEDY = """
import pytest

@pytest.mark.needs("npu")
def test_on_a_device(): pass

def test_anywhere(): pass
"""


FAILS = """
from hypothesis import given, settings, strategies as st
from harness.case import parse

# The simplest case passes: it has no label on another rank.
LINES = ("case/1 rows=1:1 sp=2", "case/1 rows=3:111 sp=2", "case/1 rows=9:111111111 sp=2")

@settings(max_examples=10, database=None, derandomize=True, deadline=None)
@given(case=st.sampled_from([parse(line) for line in LINES]))
def test_the_step_is_right(harness_evaluate, case):
    assert harness_evaluate(case, "mutants.B14").verdict.passed

def test_that_fails_without_a_comparison(harness_evaluate):
    assert False

def test_that_looks_at_no_verdict(harness_evaluate):
    harness_evaluate(parse(LINES[1]), "mutants.B14")
"""


PROVES = """
import pytest
from hypothesis import given, settings, strategies as st
from harness.case import parse

@settings(max_examples=20, database=None, derandomize=True)
@given(data=st.data())
def test_of_a_mutant(harness_cases, harness_prove, data):
    harness_prove(data.draw(harness_cases("mutants.B14", sps=(2,))), "mutants.B14")

def test_of_what_cannot_run(harness_prove):
    harness_prove(parse("case/1 rows=2:11 kernel=flash"))

def test_of_what_is_right_at_sp_1(harness_prove):
    harness_prove(parse("case/1 rows=3:111 sp=2"), "mutants.B14", against="self")

@given(data=st.data())
def test_whose_cases_are_drawn_for_another(harness_cases, harness_prove, data):
    harness_prove(data.draw(harness_cases()), "fussy.py:FUSSY")

def test_whose_limits_leave_nothing(harness_cases):
    harness_cases("fussy.py:FUSSY")
"""
FUSSY = """
class Fussy:
    name, limits = "fussy", "dtype=bf16"
    def supports(self, case): ...
    def run(self, case, rank, emit): ...

FUSSY = Fussy()
"""
# Rows of a terminal for one failure: its title, the block, and its line in the summary.
MOST_ROWS = 15


def count_rows(lines: list[str]) -> int:
    """Return how many rows of a terminal these lines take."""
    return sum(max(1, -(-len(line) // COLUMNS)) for line in lines)


@pytest.mark.slow
def test_a_failing_proof_prints_one_block_with_the_reason_and_the_unsupported_cases(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With it the summary of pytest shows whole messages.
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile(test_mine=PROVES, fussy=FUSSY)
    result = pytester.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(failed=4, skipped=1)
    name = "DIVERGED label-rolled-locally: the last label of a shard is the shard's own *"
    result.stdout.fnmatch_lines(
        [
            "*= FAILURES =*",
            "*_ test_of_a_mutant _*",
            name,
            "  case    case/1 rows=*",
            "  first   labels, row 0 position *",
            "  value   expected *, got *",
            "  replay  python -m harness repro * --candidate mutants.B14",
            "  bundle  *",
            "*_ test_of_what_is_right_at_sp_1 _*",
            "  against its own step at sp 1, dp 1 and one micro-batch, which may be wrong *",
            "  replay  python -m harness repro * --candidate mutants.B14 --against self",
            "  bundle  *",
            "*_ test_whose_cases_are_drawn_for_another _*",
            "UNSUPPORTED its limits are dtype=bf16",
            '  next    harness_cases("fussy.py:FUSSY") draws within its limits',
            "*_ test_whose_limits_leave_nothing _*",
            "harness_cases of fussy.py:FUSSY: limits=dtype=bf16: *",
            "*= harness =*",
            "1 UNSUPPORTED: kernel=flash*",
            "*= short test summary info =*",
            f"FAILED test_mine.py::test_of_a_mutant - {name}",
            "*= 4 failed, 1 skipped *",
        ]
    )
    lines = result.stdout.lines
    (title,) = (n for n, line in enumerate(lines) if "_ test_of_a_mutant _" in line)
    end = next(n for n, line in enumerate(lines) if n > title and "_ test_of" in line)
    (summary,) = (line for line in lines if line.startswith("FAILED") and "_mutant" in line)
    assert count_rows([*lines[title:end], summary]) <= MOST_ROWS
    folders = [line.split()[1] for line in lines if line.startswith("  bundle  ")]
    against = [read_bundle(Path(folder)).origin.against for folder in folders]
    assert against == ["plain", "self"]


@pytest.mark.slow
def test_a_worker_of_xdist_reports_what_it_judged_and_the_smallest_failure_is_kept(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_fails=FAILS, test_needy=NEEDY)
    result = pytester.runpytest_subprocess(*OPTIONS, "-n", "1")
    result.assert_outcomes(passed=2, failed=2, skipped=1)
    result.stdout.fnmatch_lines(["* cases judged in 1 launch, *"])
    result.stdout.fnmatch_lines(
        ["*1 test not run for want of npu*", "test_needy.py::test_on_a_device"]
    )
    result.stdout.fnmatch_lines(
        [
            "*1 test did not fail where a case failed*",
            "*::test_that_looks_at_no_verdict did not fail and saw a failure, DIVERGED *",
            "  replay  python -m harness repro * --candidate mutants.B14",
        ]
    )
    output = result.stdout.str()
    # The first test has a bundle; the second failed without a comparison.
    (folder,) = re.findall(r"^  bundle  (.*)$", output, re.MULTILINE)
    bundle = read_bundle(Path(folder))
    assert Path(folder).parent == pytester.path / ".harness/failures"
    assert f'repro "{bundle.case}" --candidate mutants.B14\n  bundle  {folder}\n' in output
    title = "\nDIVERGED label-rolled-locally: the last label of a shard is the shard's own"
    assert title in output
    assert bundle.case == parse("case/1 rows=3:111 sp=2")
    # Hypothesis prints a case as its line, and explains the failure with no line of the harness.
    assert f"case={bundle.case},\n" in output
    assert "harness/compare" not in output
    assert bundle.origin.test == "test_fails.py::test_the_step_is_right"
    assert bundle.origin.blob in output
    assert re.fullmatch(r"@reproduce_failure\('[0-9.]+', b'[A-Za-z0-9+/=]+'\)", bundle.origin.blob)


UNSEEN = """
import pytest
from hypothesis import given, settings, strategies as st
from harness.case import parse

CASE = parse("case/1 rows=3:111 sp=2")

def test_that_looks_at_no_verdict(harness_evaluate):
    harness_evaluate(CASE)
    harness_evaluate(CASE)

@pytest.mark.wrong_on_purpose
def test_of_a_mutant(harness_evaluate):
    harness_evaluate(CASE)

@pytest.mark.xfail
def test_that_is_expected_to_fail(harness_prove):
    harness_prove(CASE)
"""


@pytest.mark.parametrize(("unseen", "status"), [("fail", 1), ("tell", 0)])
def test_a_failure_that_no_test_failed_on_fails_the_session_unless_an_option_says_otherwise(
    unseen: str, status: int, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared_with = set()

    def fail(_: Session, job: Job) -> Comparison:
        compared_with.add(job.against)
        return fault_comparison(
            job.case, job.candidate.name, Fault(kind=Kind.RAISED, summary="rank 1 raised")
        )

    # So no rank has to run.
    monkeypatch.setattr(Session, "judge_one", fail)
    pytester.makepyfile(UNSEEN)
    options = ("--harness-unseen", unseen, "--harness-against", "self")
    result = pytester.runpytest_inprocess(*OPTIONS, *options)
    assert result.ret == status
    assert compared_with == {"self"}
    result.assert_outcomes(passed=2, xfailed=1)
    result.stdout.fnmatch_lines(
        [
            "*= 1 test did not fail where a case failed =*",
            "*::test_that_looks_at_no_verdict did not fail and saw 2 failures, first FAULT *",
            "  replay  python -m harness repro * --candidate native-local",
        ]
    )
    assert (f"@pytest.mark.{ON_PURPOSE}" in result.stdout.str()) is bool(status)


def test_a_required_device_that_is_missing_fails_the_tests_that_need_it(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(NEEDY)
    result = pytester.runpytest_inprocess("--harness-require", "npu")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*--harness-require=npu: not run, *finds no NPU device*"])
    # A session that judges nothing prints no summary.
    result.stdout.no_fnmatch_line("*cases judged*")


def test_an_unknown_device_in_a_mark_is_an_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(NEEDY.replace('"npu"', '"nppu"'))
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*needs('nppu'): use one of cuda*"])


PROVEN = """
import pytest
from harness.case import parse

@pytest.mark.parametrize("sp", {sps})
def test_it_is_right(harness_prove, sp):
    harness_prove(parse(f"case/1 rows=3:111 sp={{sp}}"))

@pytest.mark.wrong_on_purpose
def test_of_what_is_not_to_be_proven(harness_prove):
    harness_prove(parse("case/1 rows=3:111 sp=1"), "mutants.B14")
"""


@pytest.mark.parametrize(
    ("sps", "unseen", "message"),
    [
        ([1], "fail", "native-local was judged on no case that shares a sequence"),
        ([1, 2], "fail", "native-local was judged on none of 1 cases with a sequence over sp 2"),
        ([1, 2], "tell", "native-local was judged on none of 1 cases with a sequence over sp 2"),
        ([1, 4], "fail", ""),
    ],
)
def test_a_session_that_examined_too_little_of_what_it_asked_for_fails(
    sps: list[int],
    unseen: str,
    message: str,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse_sp_2(_: Session, job: Job) -> Comparison:
        assert job.against == "plain"
        if job.case.sp == 2:
            return unsupported_comparison(job.case, job.candidate.name, "not over two")
        return comparison_of(job, Verdict.EQUAL)

    # So no rank has to run.
    monkeypatch.setattr(Session, "judge_one", refuse_sp_2)
    pytester.makepyfile(PROVEN.format(sps=sps))
    result = pytester.runpytest_inprocess(*OPTIONS, "--harness-unseen", unseen)
    assert result.ret == (message != "" and unseen == "fail")
    if message:
        result.stdout.fnmatch_lines(["*= too little was examined =*", message])
    result.stdout.no_fnmatch_line("mutants.B14 was judged on*")


LEANS = """
import pytest
from harness.case import parse

@pytest.mark.parametrize("seed", range({count}))
def test_it_is_right(harness_prove, seed):
    harness_prove(parse(f"case/1 rows=3:111 sp=2 dtype=bf16 seed={{seed}}"))
"""


def test_a_session_in_which_a_gradient_is_off_by_the_same_in_every_case_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = KeyResult("grad.head", 4, 0, 0.2, slack=0.1, lean=0.01)

    def lean(_: Session, job: Job) -> Comparison:
        assert job.against == "plain"
        verdict = Verdict.WITHIN
        return comparison_with(
            case=job.case, candidate=job.candidate.name, verdict=verdict, keys=(key,), at_edge=1
        )

    # So no rank has to run.
    monkeypatch.setattr(Session, "judge_one", lean)
    pytester.makepyfile(LEANS.format(count=LEAN_LEAST))
    result = pytester.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(passed=LEAN_LEAST)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*= off by the same *", "native-local: grad.head is 1.01 of *"])


IDLE = """
import pytest
from harness.case import parse

def test_that_never_proves(harness_prove):
    pass

@pytest.mark.{on_purpose}
def test_of_a_wrong_step_that_was_asked_nothing(harness_evaluate):
    pass

def test_that_only_refuses(harness_evaluate):
    assert harness_evaluate(parse("case/1 rows=5:11111 sp=2"), "{file}:REFUSES").reason == "no"
"""

REFUSES = """
from harness.candidates.own.native import LocalDialect

class Refuses(LocalDialect):
    def supports(self, case): return "no"

REFUSES = Refuses()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tests", "message"),
    [
        (
            "never or asked",
            "a test took harness_prove or harness_evaluate, judged no case and*nev",
        ),
        ("only", "none of 1 cases was judged: all were refused"),
    ],
)
def test_a_session_that_judged_nothing_fails(
    pytester: pytest.Pytester, tests: str, message: str
) -> None:
    file = pytester.makepyfile(step=REFUSES)
    pytester.makepyfile(IDLE.format(file=file, on_purpose=ON_PURPOSE))
    result = pytester.runpytest_inprocess(*OPTIONS, "-k", tests)
    result.stdout.fnmatch_lines(["*too little was examined*", f"*{message}*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    again = pytester.runpytest_inprocess(*OPTIONS, "-k", tests, "--harness-unseen", "tell")
    assert again.ret == pytest.ExitCode.OK


LOST = """
import os

def pytest_sessionfinish(session):
    # Like a library that crashes at exit.
    if hasattr(session.config, "workerinput"):
        os._exit(11)
"""


@pytest.mark.slow
def test_a_session_fails_if_a_worker_dies_before_it_sends_its_record(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(LOST)
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess(*OPTIONS, "-n", "1")
    result.stdout.fnmatch_lines(["*of pytest-xdist died and did not tell what was judged*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


BESIDE = """
from harness.case import parse

def test_of_two(harness_evaluate):
    for seed in range(9):
        assert harness_evaluate(parse(f"case/1 rows=3:111 sp=2 seed={seed}")).verdict.passed
        harness_evaluate(parse(f"case/1 rows=4:1111 sp=2 seed={seed}"), "mine.py:MINE")

def test_of_one_that_is_drawn_for_and_never_judged(harness_cases, harness_prove):
    harness_cases("mine.py:OTHER", sps=(2,))
    harness_prove(parse("case/1 rows=3:111 sp=2 seed=9"))
"""


def test_a_candidate_file_beside_the_test_is_found_and_each_candidate_has_its_own_bounds(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = set()

    def succeed(_: Session, job: Job) -> Comparison:
        assert job.against == "plain"
        judged.add(job.candidate.name)
        keys = (KeyResult("grad.head", 4, 0, 0.5, 0.1),)
        return comparison_with(
            case=job.case, candidate=job.candidate.name, verdict=Verdict.WITHIN, keys=keys
        )

    monkeypatch.setattr(Session, "judge_one", succeed)
    monkeypatch.setattr("harness.ranks.pool.RankPool.limits", lambda *_: "")
    folder = pytester.mkdir("inner")
    # The folder in which pytest starts has a file of the same name.
    for place in (pytester.path, folder):
        (place / "mine.py").write_text("")
    (folder / "test_beside.py").write_text(BESIDE)
    result = pytester.runpytest_inprocess(*OPTIONS, "inner/test_beside.py")
    assert judged == {"native-local", "inner/mine.py:MINE"}
    result.stdout.fnmatch_lines(
        [
            "native-local, bounds: rows 1; tokens a row 3; *",
            "inner/mine.py:MINE, bounds: rows 1; tokens a row 4; *",
            "*too little was examined*",
            "inner/mine.py:OTHER was judged on no case that shares a sequence",
        ]
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
