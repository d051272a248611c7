"""Which profile of Hypothesis is the default here, and which tests are left out."""

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

from harness.importing import without_a_search_for_garbage
from harness.plugin import profiles

profiles.register()
settings.load_profile("pr" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also what takes long, as nightly does")
    parser.addoption("--browser", action="store_true", help="fail if there is no browser to test")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    with without_a_search_for_garbage():
        return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that take long are left out, and pytest says how many, unless all are asked for."""
    if not config.getoption("--all"):
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes minutes; left out unless --all is given")
