"""Profiles for Hypothesis: `--hypothesis-profile=dev`, `pr` or `nightly`, in any project.

`dev` is for work at hand, `pr` draws the same always, `nightly` draws anew every time from a
seed that it prints. None is called `ci`: a profile of that name comes with Hypothesis. A project's
own profile of one of these names is left as it is, and none is loaded unless it is asked for.
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
# Under this name the controller of xdist hands a seed to its workers.
HANDED = "harness-seed"
SEED = pytest.StashKey[int]()


@cache
def register() -> frozenset[str]:
    """Make them known to Hypothesis, but for those that a project has; which are ours."""
    from hypothesis import HealthCheck, settings
    from hypothesis.errors import InvalidArgument

    # From Hypothesis' default and not from what is loaded, which is another profile where CI is
    # set.
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
    ours = set()
    for name, profile in profiles.items():
        try:
            settings.get_profile(name)
        except InvalidArgument:
            settings.register_profile(name, profile)
            ours.add(name)
    return frozenset(ours)


def _database() -> "ExampleDatabase":
    """Failures of earlier runs, tried first; and below them those of a database only read."""
    from hypothesis.database import (
        DirectoryBasedExampleDatabase,
        MultiplexedDatabase,
        ReadOnlyDatabase,
    )

    kept = os.environ.get("HARNESS_DATABASE", "") or Path(".hypothesis", "examples")
    own = DirectoryBasedExampleDatabase(kept)
    shared = os.environ.get("HARNESS_SHARED_DATABASE")
    if not shared:
        return own
    return MultiplexedDatabase(own, ReadOnlyDatabase(DirectoryBasedExampleDatabase(shared)))


# Hypothesis loads what it is asked for in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    profile = config.getoption("--hypothesis-profile", None)
    if profile not in NAMES or profile not in register():
        return
    if profile == "nightly" and config.getoption("--hypothesis-seed") is None:
        handed = getattr(config, "workerinput", {}).get(HANDED)
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
    node.workerinput[HANDED] = node.config.stash.get(SEED, None)


def pytest_itemcollected(item: pytest.Item) -> None:
    seed, test = item.config.stash.get(SEED, None), getattr(item, "obj", None)
    if seed is None:
        return
    from hypothesis import is_hypothesis_test

    # The decorator `@seed` and the option --hypothesis-seed do the same, and put the database
    # out of use besides. What has a seed of its own keeps it.
    attribute = "_hypothesis_internal_use_seed"
    if is_hypothesis_test(test) and getattr(test, attribute, None) is None:
        setattr(getattr(test, "__func__", test), attribute, seed)
