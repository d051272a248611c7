"""Profiles for Hypothesis: `--hypothesis-profile=dev`, `pr` or `nightly`, in any project.

1. `dev` is for daily work. `pr` draws the same examples in every run. `nightly` draws other ones
   in every run, from a seed that it prints.
2. None is called `ci`, because Hypothesis has a profile of that name.
3. A profile of the project with one of these names takes precedence. A profile is loaded only if
   the command line names it.
"""

import os
import secrets
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase

NAMES = ("dev", "pr", "nightly")
# The key under which the controller of pytest-xdist sends the seed to its workers.
SEED_KEY = "harness-seed"
SEED = pytest.StashKey[int]()


@cache
def register() -> frozenset[str]:
    """Register each profile whose name the project has not taken; return the registered names."""
    from hypothesis import HealthCheck, settings
    from hypothesis.errors import InvalidArgument

    # Not derived from the profile that is loaded, because that depends on the variable CI.
    common = settings(
        settings.get_profile("default"),
        # The pool has deadlines of its own, and a case takes as long as its ranks need.
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        database=_database(),
    )
    profiles = {
        "dev": settings(common, max_examples=25),
        "pr": settings(common, max_examples=50, derandomize=True, database=None),
        "nightly": settings(common, max_examples=2000),
    }
    registered = set()
    for name, profile in profiles.items():
        try:
            settings.get_profile(name)
        except InvalidArgument:
            settings.register_profile(name, profile)
            registered.add(name)
    return frozenset(registered)


def _database() -> "ExampleDatabase":
    """Return the database of earlier failures, with a shared one behind it that is only read."""
    from hypothesis.database import (
        DirectoryBasedExampleDatabase,
        MultiplexedDatabase,
        ReadOnlyDatabase,
    )

    folder = os.environ.get("HARNESS_DATABASE", "") or Path(".hypothesis", "examples")
    own = DirectoryBasedExampleDatabase(folder)
    shared = os.environ.get("HARNESS_SHARED_DATABASE")
    if not shared:
        return own
    return MultiplexedDatabase(own, ReadOnlyDatabase(DirectoryBasedExampleDatabase(shared)))


# First, because the plugin of Hypothesis loads the named profile in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    profile = config.getoption("--hypothesis-profile", None)
    if profile not in NAMES or profile not in register():
        return
    if profile == "nightly" and config.getoption("--hypothesis-seed") is None:
        sent = getattr(config, "workerinput", {}).get(SEED_KEY)
        config.stash[SEED] = secrets.randbits(32) if sent is None else sent


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.stash.get(SEED, None)
    if seed is None:
        return None
    return f"again with --hypothesis-profile=nightly --hypothesis-seed={seed}"


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Print the seed of a failed run with -q, which prints no header."""
    seed = pytest_report_header(config)
    if seed and exitstatus and config.get_verbosity() < 0:
        terminalreporter.write_line(seed)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send the printed seed to a worker of pytest-xdist."""
    node.workerinput[SEED_KEY] = node.config.stash.get(SEED, None)


def pytest_itemcollected(item: pytest.Item) -> None:
    seed, test = item.config.stash.get(SEED, None), getattr(item, "obj", None)
    if seed is None:
        return
    from hypothesis import is_hypothesis_test

    # This is what the decorator `@seed` does. The option --hypothesis-seed does it as well, but
    # also disables the database. A test with a seed of its own keeps it.
    attribute = "_hypothesis_internal_use_seed"
    if is_hypothesis_test(test) and getattr(test, attribute, None) is None:
        setattr(getattr(test, "__func__", test), attribute, seed)
