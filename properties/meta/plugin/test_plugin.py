"""The plugin, in real pytest runs of tiny suites."""

import re
from pathlib import Path

import pytest

from harness.case import parse
from harness.compare import Comparison, KeyResult, Verdict, faulted, unsupported
from harness.compare.budget import LEAN_LEAST
from harness.failure.bundle import read_bundle

# With torch, which loads only once: what an inner session loads is forgotten.
from harness.judge import Job, Session
from harness.plugin.current_test import ON_PURPOSE
from harness.report.brief import COLUMNS
from harness.trace import Fault, Kind
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


def test_a_session_shares_one_pool_and_sums_up(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["2 cases judged in 1 launch, * elements examined: [12] *"])


# A device that no machine of ours has.
NEEDY = """
import pytest

@pytest.mark.needs("npu")
def test_on_a_device(): pass

def test_anywhere(): pass
"""


FAILS = """
from hypothesis import given, settings, strategies as st
from harness.case import parse

# The simplest passes; nothing is at the edge of a shard.
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
# What a person scrolls past for one failure: its title, the block, and its line in the summary.
MOST_ROWS = 15


def rows(lines: list[str]) -> int:
    """How many of a terminal they take."""
    return sum(max(1, -(-len(line) // COLUMNS)) for line in lines)


@pytest.mark.slow
def test_who_proves_is_told_why_it_failed_in_one_block_and_what_was_not_supported(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There pytest's summary shows all of a message.
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
    assert rows([*lines[title:end], summary]) <= MOST_ROWS
    places = [line.split()[1] for line in lines if line.startswith("  bundle  ")]
    kept = [read_bundle(Path(place)).origin.against for place in places]
    assert kept == ["plain", "self"]


@pytest.mark.slow
def test_a_worker_of_xdist_tells_what_it_judged_and_could_not_run_and_the_smallest_failure(
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
    said = result.stdout.str()
    # That of the first test, and none of the second.
    (place,) = re.findall(r"^  bundle  (.*)$", said, re.MULTILINE)
    bundle = read_bundle(Path(place))
    assert Path(place).parent == pytester.path / ".harness/failures"
    assert f'repro "{bundle.case}" --candidate mutants.B14\n  bundle  {place}\n' in said
    assert "\nDIVERGED label-rolled-locally: the last label of a shard is the shard's own" in said
    assert bundle.case == parse("case/1 rows=3:111 sp=2")
    # A case is its line, and no line of ours explains it.
    assert f"case={bundle.case},\n" in said
    assert "harness/compare" not in said
    assert bundle.origin.test == "test_fails.py::test_the_step_is_right"
    assert bundle.origin.blob in said
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
def test_a_failure_that_no_test_failed_on_fails_the_session_unless_it_is_only_told(
    unseen: str, status: int, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def failed(_: Session, job: Job) -> Comparison:
        asked.append(job.against)
        return faulted(
            job.case, job.candidate.name, Fault(kind=Kind.RAISED, summary="rank 1 raised")
        )

    # No rank has to run for it.
    monkeypatch.setattr(Session, "judge_one", failed)
    pytester.makepyfile(UNSEEN)
    options = ("--harness-unseen", unseen, "--harness-against", "self")
    result = pytester.runpytest_inprocess(*OPTIONS, *options)
    assert result.ret == status
    assert set(asked) == {"self"}
    result.assert_outcomes(passed=2, xfailed=1)
    result.stdout.fnmatch_lines(
        [
            "*= 1 test did not fail where a case failed =*",
            "*::test_that_looks_at_no_verdict did not fail and saw 2 failures, first FAULT *",
            "  replay  python -m harness repro * --candidate native-local",
        ]
    )
    assert (f"@pytest.mark.{ON_PURPOSE}" in result.stdout.str()) is bool(status)


def test_a_runner_that_must_have_the_device_cannot_pass_by_skipping(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(NEEDY)
    result = pytester.runpytest_inprocess("--harness-require", "npu")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*--harness-require=npu: not run, *finds no NPU device*"])
    # What judges nothing says nothing of cases.
    result.stdout.no_fnmatch_line("*cases judged*")


def test_a_device_that_nobody_knows_is_a_slip_of_the_pen(pytester: pytest.Pytester) -> None:
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
    ("sps", "unseen", "told"),
    [
        ([1], "fail", "native-local was judged on no case that shares a sequence"),
        ([1, 2], "fail", "native-local was judged on none of 1 cases with a sequence over sp 2"),
        ([1, 2], "tell", "native-local was judged on none of 1 cases with a sequence over sp 2"),
        ([1, 4], "fail", ""),
    ],
)
def test_a_session_in_which_too_little_was_examined_is_no_pass(
    sps: list[int],
    unseen: str,
    told: str,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def all_but_sp_2(_: Session, job: Job) -> Comparison:
        assert job.against == "plain"
        if job.case.sp == 2:
            return unsupported(job.case, job.candidate.name, "not over two")
        return comparison_of(job, Verdict.EQUAL)

    # No rank has to run for it.
    monkeypatch.setattr(Session, "judge_one", all_but_sp_2)
    pytester.makepyfile(PROVEN.format(sps=sps))
    result = pytester.runpytest_inprocess(*OPTIONS, "--harness-unseen", unseen)
    assert result.ret == (told != "" and unseen == "fail")
    if told:
        result.stdout.fnmatch_lines(["*= too little was examined =*", told])
    result.stdout.no_fnmatch_line("mutants.B14 was judged on*")


LEANS = """
import pytest
from harness.case import parse

@pytest.mark.parametrize("seed", range({count}))
def test_it_is_right(harness_prove, seed):
    harness_prove(parse(f"case/1 rows=3:111 sp=2 dtype=bf16 seed={{seed}}"))
"""


def test_a_session_in_which_a_gradient_is_off_by_the_same_in_every_case_is_no_pass(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = KeyResult("grad.head", 4, 0, 0.2, slack=0.1, lean=0.01)

    def off(_: Session, job: Job) -> Comparison:
        assert job.against == "plain"
        verdict = Verdict.WITHIN
        return Comparison(
            case=job.case, candidate=job.candidate.name, verdict=verdict, keys=(key,), at_edge=1
        )

    # No rank has to run for it.
    monkeypatch.setattr(Session, "judge_one", off)
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
    ("tests", "told"),
    [
        (
            "never or asked",
            "a test took harness_prove or harness_evaluate, judged no case and*nev",
        ),
        ("only", "none of 1 cases was judged: all were refused"),
    ],
)
def test_a_session_that_judged_nothing_is_no_pass(
    pytester: pytest.Pytester, tests: str, told: str
) -> None:
    file = pytester.makepyfile(step=REFUSES)
    pytester.makepyfile(IDLE.format(file=file, on_purpose=ON_PURPOSE))
    result = pytester.runpytest_inprocess(*OPTIONS, "-k", tests)
    result.stdout.fnmatch_lines(["*too little was examined*", f"*{told}*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    again = pytester.runpytest_inprocess(*OPTIONS, "-k", tests, "--harness-unseen", "tell")
    assert again.ret == pytest.ExitCode.OK


LOST = """
import os

def pytest_sessionfinish(session):
    # As a library that breaks at exit.
    if hasattr(session.config, "workerinput"):
        os._exit(11)
"""


@pytest.mark.slow
def test_what_a_worker_judged_that_died_at_its_end_is_no_pass(pytester: pytest.Pytester) -> None:
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


def test_a_file_beside_the_test_is_judged_and_each_candidate_has_bounds_of_its_own(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = set()

    def right(_: Session, job: Job) -> Comparison:
        assert job.against == "plain"
        asked.add(job.candidate.name)
        keys = (KeyResult("grad.head", 4, 0, 0.5, 0.1),)
        return Comparison(
            case=job.case, candidate=job.candidate.name, verdict=Verdict.WITHIN, keys=keys
        )

    monkeypatch.setattr(Session, "judge_one", right)
    monkeypatch.setattr("harness.ranks.pool.RankPool.limits", lambda *_: "")
    folder = pytester.mkdir("inner")
    # Another of that name lies where pytest is started.
    for place in (pytester.path, folder):
        (place / "mine.py").write_text("")
    (folder / "test_beside.py").write_text(BESIDE)
    result = pytester.runpytest_inprocess(*OPTIONS, "inner/test_beside.py")
    assert asked == {"native-local", "inner/mine.py:MINE"}
    result.stdout.fnmatch_lines(
        [
            "native-local, bounds: rows 1; tokens a row 3; *",
            "inner/mine.py:MINE, bounds: rows 1; tokens a row 4; *",
            "*too little was examined*",
            "inner/mine.py:OTHER was judged on no case that shares a sequence",
        ]
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
