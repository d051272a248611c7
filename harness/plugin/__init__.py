"""The pytest plugin: a pool of ranks for the session, and a word about it at the end.

    @given(data=st.data())
    def test_my_step_is_plain_training(harness_cases, harness_prove, data):
        harness_prove(data.draw(harness_cases(sps=(2, 4))), "mine.py:MINE")

Under pytest-xdist every worker has a pool of its own.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from harness.plugin import failures, needs
from harness.plugin.failures import LAST

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from harness.case import Case
    from harness.compare import Comparison
    from harness.ranks.pool import RankPool

Evaluate = Callable[..., "Comparison"]
Prove = Callable[..., None]
Cases = Callable[..., "SearchStrategy[Case]"]
COUNTED = pytest.StashKey[Counter[str]]()
# By reason.
REFUSED = pytest.StashKey[Counter[str]]()
# With the names under which a worker of xdist hands them over.
COUNTERS = (COUNTED, "harness"), (REFUSED, "harness-refused")


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
    group.addoption(
        "--harness-known",
        default="fail",
        choices=("pass", "fail"),
        help="what a bug comes to that is listed of a published package; default: fail",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COUNTED], config.stash[REFUSED] = Counter(), Counter()


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
    from harness.judge.known import recognised

    stash = pytestconfig.stash
    counted = stash[COUNTED]

    def judge(case: "Case", candidate: str = harness_candidate) -> "Comparison":
        seen = evaluate(case, candidate, harness_pool)
        comparison = recognised(seen)
        counted["cases"] += 1
        counted["elements"] += comparison.elements
        counted[comparison.verdict.name] += 1
        if not comparison.verdict.passed:
            stash[LAST] = seen, harness_pool
        return comparison

    return judge


@pytest.fixture(scope="session")
def harness_prove(harness_evaluate: Evaluate, pytestconfig: pytest.Config) -> Prove:
    """Judge a case, and fail with the explanation if it does not pass.

    What the candidate does not support is counted and told at the end: it skips a test, and under
    Hypothesis another case is drawn.
    """
    from hypothesis import currently_in_test_context, reject

    from harness.compare import Verdict
    from harness.report import explain

    refused = pytestconfig.stash[REFUSED]
    spared = {Verdict.KNOWN} if pytestconfig.getoption("--harness-known") == "pass" else set()

    def prove(case: "Case", *candidate: str) -> None:
        comparison = harness_evaluate(case, *candidate)
        if comparison.verdict in spared:
            return
        if comparison.verdict is not Verdict.UNSUPPORTED:
            if not comparison.verdict.passed:
                pytest.fail(explain(comparison), pytrace=False)
            return
        refused[comparison.reason] += 1
        if currently_in_test_context():
            reject()
        whose = "" if comparison.swallowed else f"{comparison.candidate} does not support it: "
        pytest.skip(f"{whose}{comparison.reason}")

    return prove


@pytest.fixture(scope="session")
def harness_cases(pytestconfig: pytest.Config) -> Cases:
    """A strategy for cases that fit the pool: `harness_cases(sps=(2, 4))`, as `cases` takes it."""
    from harness.generation import cases

    return partial(cases, max_ranks=pytestconfig.getoption("--harness-ranks"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist hands what it counted to the controller."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        for key, name in COUNTERS:
            counted = session.config.stash[key]
            output[name] = dict(counted)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The controller of xdist takes it in."""
    told: dict[str, dict[str, int]] = getattr(node, "workeroutput", {})
    for key, name in COUNTERS:
        counted: Counter[str] = node.config.stash[key]
        counted.update(told.get(name, {}))


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
    for reason, count in config.stash[REFUSED].most_common():
        terminalreporter.write_line(f"{count} UNSUPPORTED: {reason}")
