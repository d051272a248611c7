"""A test session compares candidates of the older protocol with a recipe that it names."""

import pytest

from properties.helpers.places import PLANTED

pytest_plugins = ["pytester"]
SESSION = """
from harness.case import parse

CASE = parse("case/1 rows=5:01101,4:0111:left heads=2/1 layers=1 vocab=11 sp=2 dp=1 dim=2")

def test_of_the_session(harness_prove):
    harness_prove(CASE, "older.py:RIGHT")

def test_of_its_own(harness_prove):
    harness_prove(CASE, "older.py:RIGHT", against="older.py:WITH_RECIPE")
"""


@pytest.mark.slow
def test_a_pytest_session_takes_a_recipe_and_says_which(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(older=(PLANTED / "older.py").read_text(), test_mine=SESSION)
    session = ("-p", "no:cacheprovider", "--harness-ranks", "2", "--harness-against")
    result = pytester.runpytest_inprocess(*session, "older.py:RECIPE")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [f"compared with plain training of older.py:{name}" for name in ("RECIPE", "WITH_RECIPE")]
    )
    result = pytester.runpytest_inprocess(*session, "neither")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "against=neither: use plain, self, path/to/file.py:RECIPE" in result.stderr.str()
