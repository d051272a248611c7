"""Tests that are slow, or need a published package, run only if the command line asks for them."""

from types import SimpleNamespace
from typing import Any

import pytest

from properties.helpers.places import ROOT

QUICK = {"a.py::test_quick", "a.py::test_some[x]", "a.py::test_some[y]"}
SLOW = {"a.py::test_slow", "a.py::test_some[z]"}
LONG, LIBRARY = {"a.py::test_long"}, {"a.py::test_library"}
EVERY = QUICK | SLOW | LONG | LIBRARY


def item(nodeid: str, mark: str = "", **options: int) -> Any:
    marks = {mark: getattr(pytest.mark, mark)(**options).mark} if mark else {}
    return SimpleNamespace(nodeid=nodeid, get_closest_marker=marks.get)


@pytest.mark.parametrize(
    ("options", "args", "selected"),
    [
        ({}, ["properties"], QUICK),
        ({"--slow": True}, ["properties"], QUICK | SLOW),
        ({"--harness-candidate": "mine.py:MINE"}, ["properties"], QUICK | SLOW),
        ({}, ["a.py::test_slow"], QUICK | SLOW),
        ({"--library": True}, ["properties"], QUICK | LIBRARY),
        ({"--all": True}, ["properties"], EVERY),
    ],
)
def test_slow_tests_are_deselected_by_default_and_the_header_says_so(
    options: dict[str, Any], args: list[str], selected: set[str], pytestconfig: pytest.Config
) -> None:
    conftest: Any = pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    items = [
        item("a.py::test_quick"),
        item("a.py::test_slow", "slow"),
        *(item(f"a.py::test_some[{each}]", "slow", but=2) for each in "xyz"),
        item("a.py::test_long", "long"),
        item("a.py::test_library", "library"),
    ]
    deselected: list[Any] = []
    config = SimpleNamespace(
        args=args,
        getoption=options.get,
        hook=SimpleNamespace(pytest_deselected=lambda items: deselected.extend([*items])),
    )
    conftest.pytest_collection_modifyitems(config, items)
    assert {each.nodeid for each in items} == selected
    assert {each.nodeid for each in deselected} == EVERY - selected
    # Under pytest-xdist the header is the only place that says so.
    header = conftest.pytest_report_header(config)
    assert ("--slow adds" in header) is not (selected >= SLOW)
    assert ("--all" in header) is not (selected >= LONG)
