"""What is listed hides nothing else, and can be shown with nothing but the library."""

import subprocess
from pathlib import Path

import pytest

from harness.candidates import locate
from harness.candidates.published.bugs import Bug, bugs
from harness.candidates.published.environment import FOLDER, Environment
from harness.candidates.published.library import Library, libraries
from harness.compare import Comparison, Verdict
from harness.conformance import Request, script_of
from harness.conformance.pools import Pools
from harness.judge import Job
from harness.judge.known import listed, recognised
from properties.helpers.places import ROOT
from properties.planted import behind

pytestmark = pytest.mark.library
LISTED = [
    (library, bug)
    for library in libraries().values()
    for bug in bugs(library)
    if bug.is_in(library.pinned)
]


def wrong(comparison: Comparison) -> list[str]:
    return [result.key for result in comparison.keys if result.wrong]


def installed(library: Library) -> Environment:
    environment = Environment(library, library.pinned)
    if not environment.installed:
        pytest.skip(f"{library.distribution} {library.pinned} is not installed")
    return environment


@pytest.mark.parametrize(
    "library", [each for each in libraries().values() if each.mends], ids=lambda each: each.name
)
def test_a_second_bug_behind_a_listed_one_is_no_known_one(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(library)
    outside = behind.make(tmp_path, library)
    monkeypatch.syspath_prepend(outside)
    monkeypatch.setenv("PYTHONPATH", str(outside))
    libraries.cache_clear()
    planted = libraries()[behind.NAME]
    monkeypatch.setenv(FOLDER, str(behind.at_home(tmp_path, library, planted)))
    there = [bug for bug in bugs(library) if bug.key in library.mends]
    alone: dict[str, Comparison] = {}
    behind_it: dict[str, Comparison] = {}
    try:
        for name, found in ((library.name, alone), (behind.NAME, behind_it)):
            home = locate(f"{name}.{there[0].candidate[0]}").home
            with Pools(home, Request(deadline=120.0)) as pools:
                for bug in there:
                    job = Job(bug.case, locate(f"{name}.{bug.candidate[0]}"))
                    found[bug.key] = recognised(pools.of(bug.case.ranks).judge_one(job))
    finally:
        libraries.cache_clear()
        behind.forget()
    assert {key for key, seen in alone.items() if seen.verdict is not Verdict.KNOWN} == set()
    for key, seen in behind_it.items():
        assert seen.verdict.failed, key
        if seen.mended is None:
            # It was no listed one at the first sight, by its names or by its tensors.
            assert listed(seen) is None, key
            assert behind.PLANTED in wrong(seen), key
        else:
            # Of all that is wrong the planted one is left where what is listed is mended.
            assert seen.mended.verdict is Verdict.DIVERGED, key
            assert wrong(seen.mended) == [behind.PLANTED], key


@pytest.mark.parametrize(
    ("library", "bug"), LISTED, ids=[f"{library.name}-{bug.key}" for library, bug in LISTED]
)
def test_a_script_shows_its_bug_with_nothing_but_the_library(library: Library, bug: Bug) -> None:
    command = [installed(library).python, str(script_of(library, bug, ROOT / "docs"))]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert shown.returncode == 1, shown.stdout + shown.stderr
    assert "expected" in shown.stdout
    assert "got" in shown.stdout
