"""The pytest plugin: a pool of ranks for the session, and a word about it at the end.

    def test_my_path(harness_evaluate):
        comparison = harness_evaluate(case)
        assert comparison.verdict.passed, explain(comparison)

Under pytest-xdist every worker has a pool of its own. A test that fails names the bundle of the
last comparison in it that was no pass; under Hypothesis that is the smallest.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.case import Case
    from harness.compare import Comparison
    from harness.ranks.pool import RankPool

Evaluate = Callable[..., "Comparison"]
TALLY = pytest.StashKey[Counter[str]]()
# Of the running test, and the ranks that it was seen on.
LAST = pytest.StashKey["tuple[Comparison, RankPool] | None"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("harness", "sequence-parallel equivalence")
    group.addoption(
        "--harness-candidate",
        default="native-gather",
        metavar="C",
        help="built-in name, path/to/file.py:NAME or package.module:NAME",
    )
    group.addoption("--harness-ranks", type=int, default=4, metavar="N", help="ranks in the pool")
    group.addoption("--harness-device", default="auto", choices=("auto", "cpu", "cuda"))


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TALLY] = Counter()


@pytest.fixture(scope="session")
def harness_candidate(pytestconfig: pytest.Config) -> str:
    """The candidate under test, as named on the command line."""
    name: str = pytestconfig.getoption("--harness-candidate")
    return name


@pytest.fixture(scope="session")
def harness_pool(pytestconfig: pytest.Config) -> "Iterator[RankPool]":
    """Ranks that stay up for the whole session; they start with the first case."""
    from harness.ranks.device import choose
    from harness.ranks.pool import RankPool

    ranks: int = pytestconfig.getoption("--harness-ranks")
    device, transport = choose(pytestconfig.getoption("--harness-device"), ranks)
    with RankPool(ranks, device=device, transport=transport) as pool:
        yield pool
        pytestconfig.stash[TALLY]["launches"] += pool.launches


@pytest.fixture(scope="session")
def harness_evaluate(
    harness_pool: "RankPool", harness_candidate: str, pytestconfig: pytest.Config
) -> Evaluate:
    """Judge a case: `harness_evaluate(case)`, or with `candidate=` another one."""
    from harness.run import evaluate

    stash = pytestconfig.stash
    tally = stash[TALLY]

    def judge(case: "Case", candidate: str = harness_candidate) -> "Comparison":
        comparison = evaluate(case, candidate, harness_pool)
        tally["cases"] += 1
        tally["elements"] += comparison.elements
        tally[comparison.verdict.name] += 1
        if not comparison.verdict.passed:
            stash[LAST] = comparison, harness_pool
        return comparison

    return judge


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.config.stash[LAST] = None
    if "harness_evaluate" in getattr(item, "fixturenames", ()):
        from harness.blob import ask_for_blob

        ask_for_blob(getattr(item, "obj", None))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    last = item.config.stash.get(LAST, None)
    if last and call.excinfo and report.failed and report.when != "teardown":
        from harness.blob import blob_of
        from harness.keep import keep
        from harness.report import DEFAULT_FOLDER, replay

        folder = item.config.invocation_params.dir / DEFAULT_FOLDER
        blob = blob_of(call.excinfo.value)
        place = keep(*last, test=item.nodeid, blob=blob, folder=folder)
        report.sections.append(("harness", f"  replay  {replay(last[0])}\n  bundle  {place}"))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist hands its tally to the controller."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        tally = session.config.stash[TALLY]
        output["harness"] = dict(tally)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The controller of xdist takes it in."""
    tally: Counter[str] = node.config.stash[TALLY]
    tally.update(getattr(node, "workeroutput", {}).get("harness", {}))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    tally = config.stash[TALLY]
    if not tally["cases"]:
        return
    counts = ", ".join(f"{tally[name]} {name}" for name in sorted(tally) if name.isupper())
    terminalreporter.section("harness")
    terminalreporter.write_line(
        f"{tally['cases']} cases judged in {tally['launches']} launches, "
        f"{tally['elements']:,} elements examined: {counts}"
    )
