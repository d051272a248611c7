"""A listed bug hides no other bug."""

from pathlib import Path

import pytest

from harness.candidates import locate
from harness.candidates.published.bugs import bugs
from harness.candidates.published.environment import FOLDER, Environment
from harness.candidates.published.library import Library, libraries
from harness.compare import Comparison, Verdict
from harness.conformance import Request
from harness.conformance.pools import Pools
from harness.judge import Job
from harness.judge.known import listed_bug, mark_known
from properties.planted import behind

pytestmark = pytest.mark.library


def wrong(comparison: Comparison) -> set[str]:
    return {result.key for result in comparison.measured.keys if result.wrong}


def installed(library: Library) -> Environment:
    environment = Environment(library, library.pinned)
    if not environment.installed:
        pytest.skip(f"{library.distribution} {library.pinned} is not installed")
    return environment


@pytest.mark.parametrize(
    "library", [lib for lib in libraries().values() if lib.mends], ids=lambda lib: lib.name
)
def test_a_second_bug_behind_a_listed_one_is_not_called_known(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(library)
    outside = behind.make(tmp_path, library)
    monkeypatch.syspath_prepend(outside)
    monkeypatch.setenv("PYTHONPATH", str(outside))
    libraries.cache_clear()
    planted = libraries()[behind.NAME]
    monkeypatch.setenv(FOLDER, str(behind.at_home(tmp_path, library, planted)))
    mendable = [bug for bug in bugs(library) if bug.key in library.mends]
    listed_only: dict[str, Comparison] = {}
    with_second: dict[str, Comparison] = {}
    try:
        for name, comparisons in ((library.name, listed_only), (behind.NAME, with_second)):
            home = locate(f"{name}.{mendable[0].candidate[0]}").home
            with Pools(home, Request(deadline=120.0)) as pools:
                for bug in mendable:
                    job = Job(bug.case, locate(f"{name}.{bug.candidate[0]}"))
                    comparisons[bug.key] = mark_known(pools.of(bug.case.ranks).judge_one(job))
    finally:
        libraries.cache_clear()
        behind.forget()
    unknown = {key for key, seen in listed_only.items() if seen.verdict is not Verdict.KNOWN}
    assert unknown == set()
    for key, comparison in with_second.items():
        assert comparison.verdict.failed, key
        if comparison.inquiry.mended is None:
            # Its name or its tensors already differ from those of any listed bug.
            assert listed_bug(comparison) is None, key
            assert wrong(comparison) & set(behind.PLANTED), key
        else:
            # With the listed bug mended, only the planted tensor is wrong.
            assert comparison.inquiry.mended.verdict is Verdict.DIVERGED, key
            (only,) = wrong(comparison.inquiry.mended)
            assert only in behind.PLANTED, key
