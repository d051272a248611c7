"""Which profile of Hypothesis is the default here, and which tests are left out."""

import os
from collections import Counter
from collections.abc import Generator

import pytest
from hypothesis import settings

from harness.importing import without_a_search_for_garbage
from harness.plugin import DEFAULT, profiles

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
        return (yield)


def pytest_report_header(config: pytest.Config) -> str:
    """Workers of xdist leave tests out as well, and say nothing of it."""
    if config.getoption("--all"):
        return "tests: all"
    kinds = "quick and slow; --all adds the long" if _also_slow(config) else QUICK
    return f"tests: {kinds} ones"


def _also_slow(config: pytest.Config) -> bool:
    is_named = any("::" in word for word in config.args)
    is_named |= config.getoption("--harness-candidate", DEFAULT) != DEFAULT
    return is_named or bool(config.getoption("--slow"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that take their time are left out unless they are asked for.

    Who names a candidate, or a test, asks for the slow ones.
    """
    if config.getoption("--all"):
        return
    also_slow, also_library = _also_slow(config), config.getoption("--library")
    taken: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    seen = Counter[str]()
    for item in items:
        test = item.nodeid.partition("[")[0]
        slow = item.get_closest_marker("slow")
        is_slow = slow and seen[test] >= slow.kwargs.get("but", 0)
        seen[test] += 1
        is_left_out = (
            item.get_closest_marker("long")
            or (item.get_closest_marker("library") and not also_library)
            or (is_slow and not also_slow)
        )
        (left_out if is_left_out else taken).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = taken


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
