"""Records of what the running test judges, and of what fixtures judge for several tests."""

import os
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.campaign.bounds import Bounds
from harness.campaign.coverage import Coverage
from harness.plugin.session_record import SESSION

if TYPE_CHECKING:
    from harness.compare import Comparison
    from harness.ranks.pool import RankPool

ON_PURPOSE = "wrong_on_purpose"
JUDGING_FIXTURES = {"harness_evaluate", "harness_prove"}


@dataclass(slots=True, eq=False)
class Running:
    """The record of one test, or of one fixture that several tests share."""

    # The folder of the test's file.
    folder: Path | None = None
    # The last comparison that did not pass, and the pool that ran it.
    last: "tuple[Comparison, RankPool] | None" = None
    # How many cases were judged; how many of them diverged or were faults, and the first of those.
    judged: int = 0
    failures: int = 0
    first_failure: "Comparison | None" = None
    # The outcome of the test; `xfailed` if it failed as it was expected to.
    failed: bool = False
    passed: bool = False
    xfailed: bool = False
    # By candidate for which cases were drawn, the fields whose values the test named.
    drawn: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # By candidate, what the test asked for and judged, and the bounds of what it judged.
    coverage: dict[str, Coverage] = field(default_factory=dict)
    bounds: dict[str, Bounds] = field(default_factory=dict)
    # Whether the session has counted it, and whether a test has answered for its failures. Several
    # tests may take a shared fixture.
    is_counted: bool = False
    is_reported: bool = False
    # The records of shared fixtures that were set up for this test or fixture.
    shared: "list[Running]" = field(default_factory=list)

    def find_beside(self, candidate: str) -> str:
        """Return the candidate with the path of its file, if that lies beside the test's file."""
        name, colon, attribute = candidate.rpartition(":")
        if self.folder is None or not name.endswith(".py"):
            return candidate
        file = self.folder / name
        return f"{os.path.relpath(file)}{colon}{attribute}" if file.is_file() else candidate

    def coverage_of(self, candidate: str) -> Coverage:
        return self.coverage.setdefault(candidate, Coverage())

    def add(self, comparison: "Comparison", counted: "Comparison", pool: "RankPool") -> None:
        """Add a comparison; `counted` is the same one, but KNOWN if its bug is listed."""
        self.judged += 1
        coverage = self.coverage_of(counted.candidate)
        coverage.ask(counted.case, self.drawn.get(counted.candidate, ()))
        coverage.add(counted)
        self.bounds.setdefault(counted.candidate, Bounds()).add(counted)
        if not comparison.verdict.passed:
            self.last = comparison, pool
        if counted.verdict.failed:
            self.failures += 1
            if self.first_failure is None:
                self.first_failure = counted


RUNNING = pytest.StashKey[Running]()
# The records of shared fixtures, by the node that defines the fixture and its name.
SHARED = pytest.StashKey[dict[tuple[str, str], Running]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RUNNING] = Running()
    config.stash[SHARED] = {}
    config.addinivalue_line(
        "markers", f"{ON_PURPOSE}: judges a step that is wrong; its failures need fail no test"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.config.stash[RUNNING] = Running(item.path.parent)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Record what a shared fixture judges separately from the test that it is set up for."""
    stash = request.config.stash
    if fixturedef.scope == "function":
        return (yield)
    test = stash[RUNNING]
    stash[RUNNING] = shared = Running(test.folder)
    try:
        return (yield)
    finally:
        stash[RUNNING] = test
        stash[SHARED][fixturedef.baseid, fixturedef.argname] = shared
        test.shared += [shared, *shared.shared]


def takes_judging_fixture(item: pytest.Item) -> bool:
    return bool(JUDGING_FIXTURES & {*getattr(item, "fixturenames", ())})


def records_of(item: pytest.Item) -> list[Running]:
    """Return the record of the test that runs, and those of the shared fixtures that it takes."""
    test = item.config.stash[RUNNING]
    names = getattr(item, "fixturenames", ())
    records = [test, *test.shared]
    for (base, name), record in item.config.stash[SHARED].items():
        if name in names and f"{item.nodeid}/".startswith(_prefixes_below(base)):
            records += [record, *record.shared]
    return list(dict.fromkeys(records))


def _prefixes_below(base: str) -> tuple[str, ...]:
    """Return what the ids of all nodes below a folder, a file or a class begin with."""
    return (f"{base}/", f"{base}::") if base else ("",)


def report_to_session(item: pytest.Item) -> None:
    """Add to the session record what a finished test judged, and what it should have failed on."""
    if item.get_closest_marker(ON_PURPOSE):
        return
    test, session = item.config.stash[RUNNING], item.config.stash[SESSION]
    records = records_of(item)
    is_idle = takes_judging_fixture(item) and not any(record.judged for record in records)
    if test.passed and is_idle:
        session.idle.append(item.nodeid)
    judged = {name for record in records for name in record.bounds}
    if test.passed and judged:
        session.astray += [f"{item.nodeid} of {name}" for name in test.drawn.keys() - judged]
    for record in records:
        if not record.is_counted:
            record.is_counted = True
            session.cover(record.coverage, record.bounds)
    # A test that expects the failure of a shared fixture does not answer for it: another test may
    # still overlook it.
    new = [record for record in records if not record.is_reported]
    new = [record for record in new if record is test or not test.xfailed]
    for record in new:
        record.is_reported = True
    failures = [record.first_failure for record in new if record.first_failure is not None]
    if not failures or test.failed or test.xfailed:
        return
    from harness.report import headline, replay

    first, number = failures[0], sum(record.failures for record in new)
    count = f"{number} failures, first" if number > 1 else "a failure,"
    description = f"did not fail and saw {count} {headline(first)}\n  replay  {replay(first)}"
    session.unseen[item.nodeid] = description
