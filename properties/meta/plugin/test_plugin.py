"""The plugin, in real pytest runs of tiny suites."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

SUITE = """
from harness.case import parse

def test_sharded_is_plain(harness_evaluate):
    comparison = harness_evaluate(parse("case/1 rows=3:111,4:1011 sp=2"))
    assert comparison.verdict.passed

def test_the_candidate_is_the_one_named(harness_candidate):
    assert harness_candidate == "{candidate}"
"""


def run(pytester: pytest.Pytester, *arguments: str, candidate: str) -> pytest.RunResult:
    pytester.makepyfile(SUITE.replace("{candidate}", candidate))
    return pytester.runpytest_subprocess(
        "--harness-candidate", candidate, "--harness-ranks", "2", "-p", "no:cacheprovider",
        *arguments,
    )  # fmt: skip


def test_a_session_shares_one_pool_and_sums_up(pytester: pytest.Pytester) -> None:
    result = run(pytester, candidate="native-local")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["1 cases judged in 1 launches, * elements examined: 1 *"])


def test_every_xdist_worker_has_a_pool_of_its_own_and_the_sum_is_of_all(
    pytester: pytest.Pytester,
) -> None:
    again = pytester.makepyfile(test_again=SUITE.replace("{candidate}", "native-gather"))
    result = run(pytester, str(again), "-n", "2", "--dist", "each", candidate="native-gather")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["2 cases judged in 2 launches, *"])


def test_a_suite_that_judges_nothing_says_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_subprocess()
    result.stdout.no_fnmatch_line("*cases judged*")


NEEDY = """
import pytest

@pytest.mark.needs("cuda")
def test_on_a_gpu(): pass

def test_anywhere(): pass
"""


@pytest.fixture
def no_gpu(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    pytester.makepyfile(test_needy=NEEDY)
    return pytester


@pytest.mark.parametrize("spread", [(), ("-n", "1")])
def test_what_was_not_run_for_want_of_a_device_is_named(
    spread: tuple[str, ...], no_gpu: pytest.Pytester
) -> None:
    result = no_gpu.runpytest_subprocess("-q", *spread)
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["*1 test not run for want of cuda*", "test_needy.py::test_on_a_*"]
    )


def test_a_runner_that_must_have_the_device_cannot_pass_by_skipping(
    no_gpu: pytest.Pytester,
) -> None:
    result = no_gpu.runpytest_subprocess("--harness-require", "cuda")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*--harness-require=cuda: not run, *finds no CUDA device*"])


def test_a_device_that_nobody_knows_is_a_slip_of_the_pen(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(NEEDY.replace('"cuda"', '"cudda"'))
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*needs('cudda'): use one of cuda*"])


def test_the_plugin_is_thin() -> None:
    import harness.plugin

    for file in Path(harness.plugin.__file__).parent.glob("*.py"):
        assert len(file.read_text().splitlines()) < 130
