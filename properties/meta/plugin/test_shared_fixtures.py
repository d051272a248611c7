"""A comparison in a shared fixture counts for each test that takes the fixture."""

import pytest

from harness.compare import Comparison, KeyResult, Verdict, fault_comparison
from harness.judge import Job, Session
from harness.plugin.current_test import ON_PURPOSE
from harness.trace import Fault, Kind
from properties.helpers.comparisons import comparison_with

pytest_plugins = ["pytester"]

SUITE = """
import pytest
from harness.case import parse

@pytest.fixture(scope="module")
def seen(harness_evaluate):
    return harness_evaluate(parse("case/1 rows=3:111 sp=2"))

@pytest.mark.{on_purpose}
def test_of_a_wrong_step(seen):
    pass

def test_that_looks_at_no_verdict(seen):
    pass

def test_that_does_not_either(seen):
    pass

def test_that_fails(seen):
    assert seen.verdict.passed

@pytest.fixture(scope="class")
def outer(request):
    return request.getfixturevalue("seen")

def test_that_asks_for_one_that_asks(request):
    request.getfixturevalue("outer")
"""


def fail(_: Session, job: Job) -> Comparison:
    return fault_comparison(
        job.case, job.candidate.name, Fault(kind=Kind.RAISED, summary="rank 1 raised")
    )


def succeed(_: Session, job: Job) -> Comparison:
    keys = (KeyResult("grad.head", 4, 0, 0.5, 0.1),)
    return comparison_with(
        case=job.case, candidate=job.candidate.name, verdict=Verdict.WITHIN, keys=keys
    )


@pytest.mark.parametrize(
    ("tests", "reporting_test"),
    [
        ("wrong", None),
        ("wrong or looks", "looks_at_no_verdict"),
        ("wrong or either", "does_not_either"),
        ("wrong or looks or either", "looks_at_no_verdict"),
        ("asks", "asks_for_one_that_asks"),
    ],
)
def test_a_failure_of_a_shared_fixture_is_reported_for_the_first_test_that_should_have_failed(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    tests: str,
    reporting_test: str | None,
) -> None:
    monkeypatch.setattr(Session, "judge_one", fail)
    pytester.makepyfile(test_suite=SUITE.format(on_purpose=ON_PURPOSE))
    result = pytester.runpytest_inprocess("--harness-ranks", "2", "-k", tests)
    assert "failed" not in result.parseoutcomes()
    if reporting_test is None:
        assert result.ret == pytest.ExitCode.OK
        result.stdout.no_fnmatch_line("*did not fail*")
    else:
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(
            [
                "*= 1 test did not fail where a case failed =*",
                f"*{reporting_test} did not fail and saw a *",
            ]
        )


def test_a_test_that_fails_on_a_shared_fixture_explains_the_failure(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "judge_one", fail)
    pytester.makepyfile(test_suite=SUITE.format(on_purpose=ON_PURPOSE))
    result = pytester.runpytest_inprocess("--harness-ranks", "2", "-k", "wrong or fails")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*- harness -*", "*rank 1 raised*"])
    result.stdout.no_fnmatch_line("*did not fail*")


def test_a_fixture_is_not_confused_with_one_of_the_same_name_in_another_folder(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "judge_one", fail)
    own = "import pytest\n@pytest.fixture\ndef seen(): pass\ndef test_of_its_own(seen): pass\n"
    for folder, text in (("a", SUITE.format(on_purpose=ON_PURPOSE)), ("ab", own)):
        pytester.mkdir(folder)
        (pytester.path / folder / "conftest.py").write_text(text.partition("@pytest.mark")[0])
        (pytester.path / folder / f"test_{folder}.py").write_text(text)
    result = pytester.runpytest_inprocess("--harness-ranks", "2", "-k", "wrong or own")
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*did not fail*")


def test_no_test_that_takes_a_shared_fixture_counts_as_idle(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "judge_one", succeed)
    pytester.makepyfile(test_suite=SUITE.format(on_purpose=ON_PURPOSE))
    result = pytester.runpytest_inprocess("--harness-ranks", "2", "-k", "looks or either")
    result.stdout.no_fnmatch_line("*judged no case and passed*")
    result.assert_outcomes(passed=2)
