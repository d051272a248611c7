"""Sessions whose tests all pass, but which did not judge what they asked for."""

import pytest

from harness.compare import Comparison, KeyResult, Verdict, unsupported_comparison
from harness.judge import Job, Session
from properties.helpers.comparisons import comparison_with

pytest_plugins = ["pytester"]

OPTIONS = ("--harness-ranks", "2", "-p", "no:cacheprovider")


def refuse_bf16(_: Session, job: Job) -> Comparison:
    """Judge without ranks: bf16 is unsupported, wrong.py diverges, and the rest passes."""
    assert job.against == "plain"
    if job.case.dtype == "bf16":
        return unsupported_comparison(job.case, job.candidate.name, "fp64 only")
    verdict = Verdict.DIVERGED if job.candidate.name == "wrong.py:MINE" else Verdict.WITHIN
    keys = (KeyResult("grad.head", 4, 0, 0.5, 0.1),)
    return comparison_with(
        case=job.case, candidate=job.candidate.name, verdict=verdict, keys=keys, at_edge=1
    )


@pytest.fixture(autouse=True)
def without_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "judge_one", refuse_bf16)
    monkeypatch.setattr("harness.ranks.pool.RankPool.limits", lambda *_: "loss=token-mean dp=1")


HEAD = """
import pytest
from hypothesis import given, settings, strategies as st
from harness.case import parse

CASE = parse("case/1 rows=5:11111 sp=2")
"""
PROVES = "def test_it(harness_prove): harness_prove(CASE, 'mine.py:MINE')\n"
DRAWS = """
@settings(max_examples=30, database=None, derandomize=True)
@given(data=st.data())
def test_it(harness_cases, harness_prove, data):
    harness_prove(data.draw(harness_cases("mine.py:MINE", sps=(2,), {options})), "{file}:MINE")
"""
SHARED = """
@pytest.fixture(scope="module")
def seen(harness_evaluate): return harness_evaluate(CASE, "wrong.py:MINE")

@pytest.mark.xfail
def test_that_is_expected_to_fail(seen): assert seen.verdict.passed

def test_that_looks_elsewhere(seen): pass
"""
EMPTY = """
@pytest.mark.parametrize("seed", [])
def test_it(harness_prove, seed): harness_prove(CASE)
"""


@pytest.mark.parametrize(
    ("suite", "options", "message"),
    [
        (
            PROVES,
            ("--harness-candidate", "other.py:MINE"),
            "--harness-candidate=other.py:MINE was never judged, and others were",
        ),
        (
            DRAWS.format(options="dtypes=('fp64', 'bf16')", file="mine.py"),
            (),
            "mine.py:MINE was judged on none of * cases with dtype=bf16",
        ),
        *(
            (
                DRAWS.format(options=options, file="mine.py"),
                (),
                f"mine.py:MINE was judged on none of 1 cases with {value}",
            )
            for options, value in (
                ("dps=(1, 4)", "dp=4"),
                ("losses=('token-mean', 'row-mean')", "loss=row-mean"),
                ("stated=('loss=token-mean,micro-mean',)", "loss=micro-mean"),
            )
        ),
        (
            DRAWS.format(options="", file="other.py"),
            (),
            "a test drew cases for a candidate and judged only another: *test_it of mine.py:MINE",
        ),
        (EMPTY, (), "a test took harness_prove or harness_evaluate and had no parameters: *"),
        (SHARED, (), "*test_that_looks_elsewhere did not fail and saw a failure, DIVERGED *"),
    ],
)
def test_a_session_that_did_not_judge_what_it_asked_for_fails(
    pytester: pytest.Pytester, suite: str, options: tuple[str, ...], message: str
) -> None:
    pytester.makepyfile(mine="", other="", wrong="")
    pytester.makepyfile(HEAD + suite)
    result = pytester.runpytest_inprocess(*OPTIONS, *options)
    assert "failed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines([message])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_session_that_judged_what_it_asked_for_passes(pytester: pytest.Pytester) -> None:
    draws = DRAWS.format(options="dtypes=('fp64', 'fp32'), dps=(1,)", file="mine.py")
    pytester.makepyfile(mine="")
    pytester.makepyfile(HEAD + draws)
    result = pytester.runpytest_inprocess(*OPTIONS, "--harness-candidate", "./mine.py:MINE")
    assert result.ret == pytest.ExitCode.OK
