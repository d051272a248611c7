"""The Hypothesis profiles, in pytest sessions of two tests."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from properties.helpers.places import ROOT

CONFTEST = ROOT / "conftest.py"
# Each test writes down every number it draws, and fails if one exceeds LIMIT, as many do.
SUITE = """
import os
from pathlib import Path
from hypothesis import given, strategies as st

LIMIT = int(os.environ.get("LIMIT", 1 << 64))

def note(test, number):
    with Path(test).open("a") as file:
        print(number, file=file)
    assert number < LIMIT

@given(st.integers(0, 1 << 60))
def test_one(number):
    note("one", number)

@given(st.integers(0, 1 << 60))
def test_other(number):
    note("other", number)
"""
FEWER = """
settings.register_profile("nightly", settings.get_profile("nightly"), max_examples=40)
"""
# The conftest.py of another project, with a profile of its own.
OTHER_CONFTEST = """
from hypothesis import settings

settings.register_profile("pr", max_examples=7)
"""
# The smallest draw that fails where LIMIT is 1000.
SMALLEST = 1000
# Sessions load only the plugins that matter here, since others take time.
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
PLUGINS = (
    *("-p", "xdist", "-p", "_hypothesis_pytestplugin", "-p", "harness.plugin"),
    *("-p", "no:cacheprovider"),
)
PYTEST = (sys.executable, "-m", "pytest", "--rootdir=.", *PLUGINS)
NIGHTLY = "--hypothesis-profile=nightly"


@dataclass(frozen=True)
class Seen:
    """The output of a session, and the numbers that its two tests drew."""

    status: int
    output: str
    one: list[int]
    other: list[int]

    @property
    def seed(self) -> str:
        (seed,) = re.findall(r"--hypothesis-seed=(\d+)", self.output)
        return str(seed)


Run = Callable[..., Seen]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profiles")
    # With fewer examples: these tests are not about their number.
    (folder / "conftest.py").write_text(CONFTEST.read_text() + FEWER)
    (folder / "test_suite.py").write_text(SUITE)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    def start(*arguments: str, place: Path = folder, **variables: str) -> Seen:
        drawn = (folder / "one", folder / "other")
        for file in drawn:
            file.write_text("")
        foreign = ("CI", "PYTEST_", "HARNESS_", "HYPOTHESIS_")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
        finished = subprocess.run(
            [*PYTEST, *arguments],
            cwd=place,
            env=environment | ALONE | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        output = finished.stdout + finished.stderr
        one, other = ([int(line) for line in file.read_text().split()] for file in drawn)
        return Seen(finished.returncode, output, one, other)

    return start


@pytest.fixture(scope="module")
def night(run: Run, folder: Path) -> Seen:
    """Run a nightly session that fails, with CI set, as in a workflow, and its own database."""
    return run(NIGHTLY, CI="true", LIMIT="1000", HARNESS_DATABASE=str(folder / "night"))


def files(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.slow
def test_the_default_profile_is_dev_and_the_variable_ci_does_not_change_that_profile(
    run: Run,
) -> None:
    without_ci, with_ci = (
        re.findall(r"hypothesis profile 'dev' -> .*", run("--verbose", *options, **ci).output)
        for options, ci in (((), {}), (("--hypothesis-profile=dev",), {"CI": "true"}))
    )
    assert without_ci == with_ci != []


@pytest.mark.slow
def test_with_the_variable_ci_the_default_is_pr_which_repeats_its_draws_and_stores_nothing(
    run: Run, folder: Path
) -> None:
    first, again = (run("--verbose", CI="true", LIMIT="1000") for _ in range(2))
    assert "hypothesis profile 'pr'" in first.output
    assert "--hypothesis-seed" not in first.output
    assert first.status == again.status == 1
    assert first.one == again.one != []
    assert not files(folder / ".hypothesis" / "examples")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "header"),
    [
        ("", "hypothesis profile 'default'\n"),
        ("--hypothesis-profile=dev", "hypothesis profile 'dev' -> deadline=None, max_examples=25"),
        ("--hypothesis-profile=pr", "hypothesis profile 'pr' -> max_examples=7\n"),
        (NIGHTLY, f"again with {NIGHTLY} --hypothesis-seed="),
    ],
)
def test_another_project_gets_a_profile_only_if_it_names_one_that_it_does_not_define(
    profile: str, header: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text(OTHER_CONFTEST)
    seen = run("--verbose", "--collect-only", *profile.split(), place=tmp_path)
    assert header in seen.output


@pytest.mark.slow
def test_all_workers_draw_from_the_printed_seed(run: Run) -> None:
    both = run(NIGHTLY, "--numprocesses=2", "--dist=each")
    assert both.status == 0, both.output
    alone = run(NIGHTLY, f"--hypothesis-seed={both.seed}")
    # Each of the two workers ran both tests.
    assert sorted(both.one) == sorted(2 * alone.one) != []
    assert sorted(both.other) == sorted(2 * alone.other) != []


@pytest.mark.slow
def test_the_printed_seed_fails_again_without_the_database(run: Run, night: Seen) -> None:
    assert night.status == 1
    again = run(NIGHTLY, f"--hypothesis-seed={night.seed}", LIMIT="1000")
    assert again.status == 1
    assert again.one == night.one != []


@pytest.mark.slow
def test_a_passing_night_draws_all_its_examples_and_other_ones_than_the_night_before(
    run: Run, night: Seen
) -> None:
    passing = run(NIGHTLY, CI="true")
    assert passing.status == 0, passing.output
    assert len(passing.one) == 40
    # Hypothesis draws a few numbers, such as zero, in every session.
    assert len(set(passing.one) - set(night.one)) > 20


@pytest.mark.slow
def test_the_next_night_first_tries_a_failure_from_its_own_or_from_the_shared_database(
    run: Run, night: Seen, folder: Path
) -> None:
    assert night.one[0] != SMALLEST
    shared, own = folder / "night", folder / "own"
    before = files(shared)
    assert before
    both = {"HARNESS_DATABASE": str(own), "HARNESS_SHARED_DATABASE": str(shared)}
    following = run(NIGHTLY, LIMIT="1000", **both)
    assert following.one[0] == following.other[0] == SMALLEST
    assert following.seed != night.seed
    assert files(own)
    # Without a shared database, the failure comes from its own.
    assert run(NIGHTLY, LIMIT="1000", HARNESS_DATABASE=str(own)).one[0] == SMALLEST
    # A failure that passes now is deleted from its own database.
    assert run(NIGHTLY, **both).one[0] == SMALLEST
    assert not files(own)
    # The shared database is only read.
    assert files(shared) == before
