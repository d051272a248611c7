"""Hypothesis profiles; the plugin itself comes with the package.

`dev` is for work at hand, `pr` draws the same always, `nightly` draws anew every time from a
seed that it prints. None is called `ci`: a profile of that name comes with Hypothesis.
"""

import os
import secrets
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from hypothesis.database import (
    DirectoryBasedExampleDatabase,
    ExampleDatabase,
    MultiplexedDatabase,
    ReadOnlyDatabase,
)

from harness.importing import without_a_search_for_garbage

SEED = pytest.StashKey[int]()


def database() -> ExampleDatabase:
    """Failures of earlier runs, tried first; and below them those of a database only read."""
    kept = os.environ.get("HARNESS_DATABASE", "") or Path(".hypothesis", "examples")
    own = DirectoryBasedExampleDatabase(kept)
    shared = os.environ.get("HARNESS_SHARED_DATABASE")
    if not shared:
        return own
    return MultiplexedDatabase(own, ReadOnlyDatabase(DirectoryBasedExampleDatabase(shared)))


# From Hypothesis' default and not from what is loaded, which is another profile where CI is set.
common = settings(
    settings.get_profile("default"),
    # The pool has deadlines of its own, and a case takes as long as its ranks need.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=database(),
)
settings.register_profile("dev", common, max_examples=25)
settings.register_profile("pr", common, max_examples=50, derandomize=True, database=None)
settings.register_profile("nightly", common, max_examples=2000)
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
    nightly = config.getoption("--hypothesis-profile") == "nightly"
    if nightly and config.getoption("--hypothesis-seed") is None:
        handed = getattr(config, "workerinput", {}).get("hypothesis_seed")
        config.stash[SEED] = secrets.randbits(32) if handed is None else handed


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.stash.get(SEED, None)
    if seed is None:
        return None
    return f"again with --hypothesis-profile=nightly --hypothesis-seed={seed}"


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """With -q there is no header, and a night that failed must not be lost."""
    seed = pytest_report_header(config)
    if seed and exitstatus and config.get_verbosity() < 0:
        terminalreporter.write_line(seed)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Every worker of xdist draws from the seed that was printed."""
    node.workerinput["hypothesis_seed"] = node.config.stash.get(SEED, None)


def pytest_itemcollected(item: pytest.Item) -> None:
    seed, test = item.config.stash.get(SEED, None), getattr(item, "obj", None)
    # The decorator `@seed` and the option --hypothesis-seed do the same, and put the database
    # out of use besides. What has a seed of its own keeps it.
    attribute = "_hypothesis_internal_use_seed"
    if seed is not None and is_hypothesis_test(test) and getattr(test, attribute, None) is None:
        setattr(getattr(test, "__func__", test), attribute, seed)
