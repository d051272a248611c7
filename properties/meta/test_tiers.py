"""Tests that take time, or need a published package, run only where somebody asks for them."""

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
    ("asked", "args", "taken"),
    [
        ({}, ["properties"], QUICK),
        ({"--slow": True}, ["properties"], QUICK | SLOW),
        ({"--harness-candidate": "mine.py:MINE"}, ["properties"], QUICK | SLOW),
        ({}, ["a.py::test_slow"], QUICK | SLOW),
        ({"--library": True}, ["properties"], QUICK | LIBRARY),
        ({"--all": True}, ["properties"], EVERY),
    ],
)
def test_what_takes_its_time_is_left_out_and_told(
    asked: dict[str, Any], args: list[str], taken: set[str], pytestconfig: pytest.Config
) -> None:
    ours: Any = pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    items = [
        item("a.py::test_quick"),
        item("a.py::test_slow", "slow"),
        *(item(f"a.py::test_some[{each}]", "slow", but=2) for each in "xyz"),
        item("a.py::test_long", "long"),
        item("a.py::test_library", "library"),
    ]
    told: list[Any] = []
    config = SimpleNamespace(
        args=args,
        getoption=asked.get,
        hook=SimpleNamespace(pytest_deselected=lambda items: told.extend([*items])),
    )
    ours.pytest_collection_modifyitems(config, items)
    assert {each.nodeid for each in items} == taken
    assert {each.nodeid for each in told} == EVERY - taken
    # Under xdist nobody hears what was deselected.
    assert ("--slow adds" in ours.pytest_report_header(config)) is not (taken >= SLOW)
    assert ("--all" in ours.pytest_report_header(config)) is not (taken >= LONG)
