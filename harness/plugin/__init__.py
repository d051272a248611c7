"""The pytest plugin: a pool of ranks for the session, and a word about it at the end.

    def test_my_path(harness_evaluate):
        comparison = harness_evaluate(case)
        assert comparison.verdict.passed, explain(comparison)

Under pytest-xdist every worker has a pool of its own.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from harness.plugin import failures, needs
from harness.plugin.failures import LAST

if TYPE_CHECKING:
    from harness.case import Case
    from harness.compare import Comparison
    from harness.ranks.pool import RankPool

Evaluate = Callable[..., "Comparison"]
COUNTED = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    for part in (failures, needs):
        pluginmanager.register(part, f"harness-{part.__name__.rpartition('.')[2]}")
    group = parser.getgroup("harness", "sequence-parallel equivalence")
    group.addoption(
        "--harness-candidate",
        default="native-gather",
        metavar="C",
        help="a built-in name, path/to/file.py:NAME or package.module:NAME",
    )
    group.addoption("--harness-ranks", type=int, default=4, metavar="N", help="ranks in the pool")
    group.addoption(
        "--harness-device", default="auto", choices=("auto", "cpu", *needs.DEVICES, "pretend")
    )
    group.addoption("--harness-transport", default="auto", choices=("auto", "gloo", "nccl"))
    group.addoption(
        "--harness-deadline",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="time limit of one case; default: 20",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COUNTED] = Counter()


@pytest.fixture(scope="session")
def harness_candidate(pytestconfig: pytest.Config) -> str:
    """The candidate under test, as named on the command line."""
    name: str = pytestconfig.getoption("--harness-candidate")
    return name


@pytest.fixture(scope="session")
def harness_pool(pytestconfig: pytest.Config) -> "Iterator[RankPool]":
    """Ranks that stay up for the whole session; they start with the first case."""
    from harness.plugin.place import place
    from harness.ranks.device import NoPlace
    from harness.ranks.pool import RankPool

    ranks: int = pytestconfig.getoption("--harness-ranks")
    deadline: float = pytestconfig.getoption("--harness-deadline")
    try:
        placement = place(pytestconfig, ranks)
    except NoPlace as error:
        pytest.fail(f"--harness-{error}", pytrace=False)
    with RankPool(ranks, placement, deadline=deadline) as pool:
        yield pool
        pytestconfig.stash[COUNTED]["launches"] += pool.launches


@pytest.fixture(scope="session")
def harness_evaluate(
    harness_pool: "RankPool", harness_candidate: str, pytestconfig: pytest.Config
) -> Evaluate:
    """Judge a case: `harness_evaluate(case)`, or with `candidate=` another one."""
    from harness.judge import evaluate

    stash = pytestconfig.stash
    counted = stash[COUNTED]

    def judge(case: "Case", candidate: str = harness_candidate) -> "Comparison":
        comparison = evaluate(case, candidate, harness_pool)
        counted["cases"] += 1
        counted["elements"] += comparison.elements
        counted[comparison.verdict.name] += 1
        if not comparison.verdict.passed:
            stash[LAST] = comparison, harness_pool
        return comparison

    return judge


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist hands what it counted to the controller."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        counted = session.config.stash[COUNTED]
        output["harness"] = dict(counted)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The controller of xdist takes it in."""
    counted: Counter[str] = node.config.stash[COUNTED]
    counted.update(getattr(node, "workeroutput", {}).get("harness", {}))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    counted = config.stash[COUNTED]
    if not counted["cases"]:
        return
    counts = ", ".join(f"{counted[name]} {name}" for name in sorted(counted) if name.isupper())
    terminalreporter.section("harness")
    terminalreporter.write_line(
        f"{counted['cases']} cases judged in {counted['launches']} launches, "
        f"{counted['elements']:,} elements examined: {counts}"
    )
