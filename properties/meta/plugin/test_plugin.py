"""The plugin, in real pytest runs of tiny suites."""

import re
from pathlib import Path

import pytest

from harness.case import parse
from harness.failure.bundle import read_bundle

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
    result.stdout.fnmatch_lines(["2 cases judged in 1 launches, * elements examined: [12] *"])


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
@given(line=st.sampled_from(LINES))
def test_the_step_is_right(harness_evaluate, line):
    assert harness_evaluate(parse(line), "mutants.B14").verdict.passed

def test_that_fails_without_a_comparison(harness_evaluate):
    assert False
"""


PROVES = """
import pytest
from hypothesis import Phase, given, settings, strategies as st
from harness.case import parse

@settings(max_examples=20, database=None, derandomize=True, phases=[Phase.generate])
@given(data=st.data())
def test_of_a_mutant(harness_cases, harness_prove, data):
    harness_prove(data.draw(harness_cases(sps=(2,), losses=("token-mean",))), "mutants.B14")

def test_of_what_cannot_run(harness_prove):
    harness_prove(parse("case/1 rows=2:11 kernel=flash"))
"""


def test_who_proves_is_told_why_it_failed_and_what_was_not_supported(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(PROVES)
    result = pytester.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "DIVERGED  candidate mutants.B14",
            "  looks   label-rolled-locally: *",
            "  replay  python -m harness repro * --candidate mutants.B14",
            "1 UNSUPPORTED: kernel=flash*",
        ]
    )


def test_a_worker_of_xdist_tells_what_it_judged_and_could_not_run_and_the_smallest_failure(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_fails=FAILS, test_needy=NEEDY)
    result = pytester.runpytest_subprocess(*OPTIONS, "-n", "1")
    result.assert_outcomes(passed=1, failed=2, skipped=1)
    result.stdout.fnmatch_lines(["* cases judged in 1 launches, *"])
    result.stdout.fnmatch_lines(
        ["*1 test not run for want of npu*", "test_needy.py::test_on_a_device"]
    )
    said = result.stdout.str()
    # That of the first test, and none of the second.
    (place,) = re.findall(r"^  bundle  (.*)$", said, re.MULTILINE)
    bundle = read_bundle(Path(place))
    assert Path(place).parent == pytester.path / ".harness/failures"
    assert f'repro "{bundle.case}" --candidate mutants.B14\n  bundle  {place}\n' in said
    assert "  looks   label-rolled-locally: the last label of a shard is the shard's own" in said
    assert bundle.case == parse("case/1 rows=3:111 sp=2")
    assert bundle.origin.test == "test_fails.py::test_the_step_is_right"
    assert bundle.origin.blob in said
    assert re.fullmatch(r"@reproduce_failure\('[0-9.]+', b'[A-Za-z0-9+/=]+'\)", bundle.origin.blob)


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
