"""What the running test judged and did not pass, and what its fixtures did for several tests."""

import os
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.campaign.bounds import Bounds
from harness.campaign.coverage import Coverage
from harness.plugin.session_record import JUDGED

if TYPE_CHECKING:
    from harness.compare import Comparison
    from harness.ranks.pool import RankPool

ON_PURPOSE = "wrong_on_purpose"
JUDGING = {"harness_evaluate", "harness_prove"}


@dataclass(slots=True, eq=False)
class Running:
    """What a test, or a fixture of several tests, judged."""

    # Where its file lies.
    folder: Path | None = None
    # What it did not pass last, and the ranks that it was seen on.
    last: "tuple[Comparison, RankPool] | None" = None
    # How many cases it judged; those that diverged or were faults, and the first of them.
    judged: int = 0
    failures: int = 0
    first: "Comparison | None" = None
    # Whether the test failed or passed, or failed as it was expected to.
    failed: bool = False
    passed: bool = False
    excused: bool = False
    # By candidate for which cases were drawn, the fields of which values were named.
    drawn: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # By candidate, what was to be judged of it, and the bounds of what was.
    coverage: dict[str, Coverage] = field(default_factory=dict)
    bounds: dict[str, Bounds] = field(default_factory=dict)
    # Whether it is counted, and whether a test has answered for it; a fixture is taken by several.
    counted: bool = False
    told: bool = False
    # What the fixtures judged that were set up for it, and are there for others too.
    shared: "list[Running]" = field(default_factory=list)

    def beside(self, candidate: str) -> str:
        """Name the file that lies beside the test, wherever pytest was started."""
        name, colon, attribute = candidate.rpartition(":")
        if self.folder is None or not name.endswith(".py"):
            return candidate
        place = self.folder / name
        return f"{os.path.relpath(place)}{colon}{attribute}" if place.is_file() else candidate

    def of(self, candidate: str) -> Coverage:
        return self.coverage.setdefault(candidate, Coverage())

    def add(self, seen: "Comparison", recognised: "Comparison", pool: "RankPool") -> None:
        """What came out, and the same as it counts, which may be that it is listed."""
        self.judged += 1
        coverage = self.of(recognised.candidate)
        coverage.ask(recognised.case, self.drawn.get(recognised.candidate, ()))
        coverage.add(recognised)
        self.bounds.setdefault(recognised.candidate, Bounds()).add(recognised)
        if not seen.verdict.passed:
            self.last = seen, pool
        if recognised.verdict.failed:
            self.failures += 1
            if self.first is None:
                self.first = recognised


RUNNING = pytest.StashKey[Running]()
# By place and name of a fixture of several tests, what it judged.
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
    """What a fixture of several tests judges is no single test's."""
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


def is_judging(item: pytest.Item) -> bool:
    """Whether it took something that judges."""
    return bool(JUDGING & {*getattr(item, "fixturenames", ())})


def taken(item: pytest.Item) -> list[Running]:
    """What the test judged, and the fixtures that it shares with others."""
    test = item.config.stash[RUNNING]
    names = getattr(item, "fixturenames", ())
    parts = [test, *test.shared]
    for (place, name), part in item.config.stash[SHARED].items():
        if name in names and f"{item.nodeid}/".startswith(_prefixes(place)):
            parts += [part, *part.shared]
    return list(dict.fromkeys(parts))


def _prefixes(place: str) -> tuple[str, ...]:
    """How all that lies in a folder, a file or a class is called; everything lies in none."""
    return (f"{place}/", f"{place}::") if place else ("",)


def tell(item: pytest.Item) -> None:
    """To the session, of a test that is through: what was judged, and what it did not fail on."""
    if item.get_closest_marker(ON_PURPOSE):
        return
    test, judged = item.config.stash[RUNNING], item.config.stash[JUDGED]
    parts = taken(item)
    idle = is_judging(item) and not any(part.judged for part in parts)
    if test.passed and idle:
        judged.idle.append(item.nodeid)
    seen = {name for part in parts for name in part.bounds}
    if test.passed and seen:
        judged.astray += [f"{item.nodeid} of {name}" for name in test.drawn.keys() - seen]
    for part in parts:
        if not part.counted:
            part.counted = True
            judged.cover(part.coverage, part.bounds)
    # A failure that one test expects is none that another may overlook.
    new = [part for part in parts if not part.told and (part is test or not test.excused)]
    for part in new:
        part.told = True
    first = next((part.first for part in new if part.first is not None), None)
    if first is None or test.failed or test.excused:
        return
    from harness.report import headline, replay

    failures = sum(part.failures for part in new)
    count = f"{failures} failures, first" if failures > 1 else "a failure,"
    told = f"did not fail and saw {count} {headline(first)}\n  replay  {replay(first)}"
    judged.unseen[item.nodeid] = told
