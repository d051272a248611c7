"""The default Hypothesis profile of this project's tests, and which tests run by default."""

import gc
import os
from collections import Counter
from collections.abc import Generator

import pytest
from hypothesis import settings

from harness.importing import without_a_search_for_garbage
from harness.plugin import DEFAULT_CANDIDATE, profiles

# The tests beside the pages of findings join those of other projects, and need their packages.
collect_ignore = ["docs"]

QUICK = "quick; --slow adds what CI runs for every change, --all also the long"

profiles.register()
settings.load_profile("pr" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also what takes a second or more")
    parser.addoption("--all", action="store_true", help="also what takes minutes, as nightly does")
    parser.addoption(
        "--library",
        action="store_true",
        help="also what runs published packages",
    )
    parser.addoption("--browser", action="store_true", help="fail if there is no browser to test")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    with without_a_search_for_garbage():
        collected = yield
    # What has been imported and collected stays until the end: the collector need not look again.
    gc.freeze()
    return collected


def pytest_report_header(config: pytest.Config) -> str:
    """Say which kinds of tests run: under pytest-xdist the summary counts no deselected tests."""
    if config.getoption("--all"):
        return "tests: all"
    kinds = "quick and slow; --all adds the long" if _runs_slow(config) else QUICK
    return f"tests: {kinds} ones"


def _runs_slow(config: pytest.Config) -> bool:
    """Return whether slow tests run: with --slow, or if a test or a candidate is named."""
    is_named = any("::" in word for word in config.args)
    is_named |= config.getoption("--harness-candidate", DEFAULT_CANDIDATE) != DEFAULT_CANDIDATE
    return is_named or bool(config.getoption("--slow"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect slow, long and library tests that the command line does not ask for."""
    if config.getoption("--all"):
        return
    runs_slow, runs_library = _runs_slow(config), config.getoption("--library")
    selected: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    # How many parameters of each test came before.
    count = Counter[str]()
    for item in items:
        test = item.nodeid.partition("[")[0]
        slow = item.get_closest_marker("slow")
        is_slow = slow and count[test] >= slow.kwargs.get("but", 0)
        count[test] += 1
        is_deselected = (
            item.get_closest_marker("long")
            or (item.get_closest_marker("library") and not runs_library)
            or (is_slow and not runs_slow)
        )
        (deselected if is_deselected else selected).append(item)
    config.hook.pytest_deselected(items=deselected)
    items[:] = selected


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "slow(but=0): takes a second or more; left out, but for its first parameters, unless "
        "--slow or --all is given",
    )
    config.addinivalue_line("markers", "long: takes minutes; left out unless --all is given")
    config.addinivalue_line(
        "markers",
        "library: runs a published package; left out unless --library or --all is given",
    )
