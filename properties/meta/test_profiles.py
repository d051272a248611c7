"""The Hypothesis profiles, in pytest runs of a suite of two."""

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
# Each test notes what it draws; beyond LIMIT it fails, and many draws are.
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
# A project that knows nothing of ours, and has a profile of its own.
THEIRS = """
from hypothesis import settings

settings.register_profile("pr", max_examples=7)
"""
# The smallest draw that fails where LIMIT is 1000.
SMALLEST = 1000
# With the plugins that matter, and without the time that others take to load.
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
PLUGINS = (
    *("-p", "xdist", "-p", "_hypothesis_pytestplugin", "-p", "harness.plugin"),
    *("-p", "no:cacheprovider"),
)
PYTEST = (sys.executable, "-m", "pytest", "--rootdir=.", *PLUGINS)
NIGHTLY = "--hypothesis-profile=nightly"


@dataclass(frozen=True)
class Seen:
    """What a run said, and what its tests drew."""

    status: int
    said: str
    one: list[int]
    other: list[int]

    @property
    def seed(self) -> str:
        (seed,) = re.findall(r"--hypothesis-seed=(\d+)", self.said)
        return str(seed)


Run = Callable[..., Seen]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profiles")
    # How many cases a night has is not what is tested here.
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
        said = finished.stdout + finished.stderr
        return Seen(finished.returncode, said, *(
            [int(line) for line in file.read_text().split()] for file in drawn
        ))  # fmt: skip

    return start


@pytest.fixture(scope="module")
def night(run: Run, folder: Path) -> Seen:
    """One that fails, in a database of its own; CI is set, as it is where nights are run."""
    return run(NIGHTLY, CI="true", LIMIT="1000", HARNESS_DATABASE=str(folder / "night"))


def files(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.slow
def test_without_ci_the_profile_is_dev_which_is_the_same_with_ci(run: Run) -> None:
    here, there = (
        re.findall(r"hypothesis profile 'dev' -> .*", run("--verbose", *named, **ci).said)
        for named, ci in (((), {}), (("--hypothesis-profile=dev",), {"CI": "true"}))
    )
    assert here == there != []


@pytest.mark.slow
def test_with_ci_it_is_pr_which_draws_the_same_always_and_keeps_nothing(
    run: Run, folder: Path
) -> None:
    first, again = (run("--verbose", CI="true", LIMIT="1000") for _ in range(2))
    assert "hypothesis profile 'pr'" in first.said
    assert "--hypothesis-seed" not in first.said
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
def test_a_project_of_ones_own_has_the_profiles_where_it_asks_for_one_that_it_does_not_have(
    profile: str, header: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text(THEIRS)
    seen = run("--verbose", "--collect-only", *profile.split(), place=tmp_path)
    assert header in seen.said


@pytest.mark.slow
def test_all_workers_draw_from_the_seed_that_was_printed(run: Run) -> None:
    both = run(NIGHTLY, "--numprocesses=2", "--dist=each")
    assert both.status == 0, both.said
    alone = run(NIGHTLY, f"--hypothesis-seed={both.seed}")
    # Either worker ran both tests.
    assert sorted(both.one) == sorted(2 * alone.one) != []
    assert sorted(both.other) == sorted(2 * alone.other) != []


@pytest.mark.slow
def test_the_seed_that_was_printed_fails_again_without_the_database(run: Run, night: Seen) -> None:
    assert night.status == 1
    again = run(NIGHTLY, f"--hypothesis-seed={night.seed}", LIMIT="1000")
    assert again.status == 1
    assert again.one == night.one != []


@pytest.mark.slow
def test_a_night_that_passes_draws_as_many_cases_as_it_should_and_others_than_the_last(
    run: Run, night: Seen
) -> None:
    passing = run(NIGHTLY, CI="true")
    assert passing.status == 0, passing.said
    assert len(passing.one) == 40
    # A few, zero among them, are drawn more often than others.
    assert len(set(passing.one) - set(night.one)) > 20


@pytest.mark.slow
def test_the_next_night_tries_a_failure_first_that_was_kept_or_that_others_share(
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
    # Its own is tried first where nobody shares any.
    assert run(NIGHTLY, LIMIT="1000", HARNESS_DATABASE=str(own)).one[0] == SMALLEST
    # What passes by now is forgotten wherever that is possible.
    assert run(NIGHTLY, **both).one[0] == SMALLEST
    assert not files(own)
    # What is shared is read and never written.
    assert files(shared) == before
