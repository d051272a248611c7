"""The pytest plugin: a pool of ranks for the session, and a word about it at the end.

    @given(data=st.data())
    def test_my_step_is_plain_training(harness_cases, harness_prove, data):
        case = data.draw(harness_cases("mine.py:MINE", sps=(2, 4)))
        harness_prove(case, "mine.py:MINE")

Under pytest-xdist every worker has a pool of its own. Under torchrun, and whatever else starts one
process a rank, these are the ranks.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any, get_args

import pytest

from harness.against import PLAIN, Against
from harness.plugin import current_test, failures, needs, profiles
from harness.plugin.current_test import RUNNING
from harness.plugin.failures import NotProven
from harness.plugin.session_record import JUDGED, Judged

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from harness.case import Case
    from harness.compare import Comparison
    from harness.ranks.pool import RankPool

Evaluate = Callable[..., "Comparison"]
Prove = Callable[..., None]
Cases = Callable[..., "SearchStrategy[Case]"]
DEFAULT = "native-gather"
# In the pool, where nobody asks for others.
RANKS = 4
# Under this name a worker of xdist hands over what it judged.
HANDED = "harness"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    for part in (current_test, failures, needs, profiles):
        pluginmanager.register(part, f"harness-{part.__name__.rpartition('.')[2]}")
    group = parser.getgroup("harness", "sequence-parallel equivalence")
    group.addoption(
        "--harness-candidate",
        default=DEFAULT,
        metavar="C",
        help="a built-in name, path/to/file.py:NAME or package.module:NAME",
    )
    group.addoption(
        "--harness-against",
        default=PLAIN,
        choices=get_args(Against),
        help="plain: compare with plain training; self: with the candidate's own step at sp 1; "
        "default: plain",
    )
    group.addoption(
        "--harness-ranks", type=int, metavar="N", help=f"ranks in the pool; default: {RANKS}"
    )
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
    named = config.getoption("--harness-candidate")
    config.stash[JUDGED] = Judged(named="" if named == DEFAULT else named)
    if config.option.harness_ranks is None:
        config.option.harness_ranks = RANKS


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Where a launcher has started several of us, one has the session, the others the ranks."""
    from harness.ranks.world import World

    world = World.here()
    if world is None:
        return None
    if not world.is_first:
        from harness.ranks.host_keeper import follow

        return 0 if follow(world) else 3
    if getattr(config.option, "numprocesses", None):
        raise pytest.UsageError(
            f"-n {config.option.numprocesses}: a launcher started the ranks of one pool, which "
            "several workers cannot share; leave it out"
        )
    if config.option.harness_ranks not in (None, world.size):
        raise pytest.UsageError(
            f"--harness-ranks={config.option.harness_ranks}: a launcher started {world.size}; "
            "leave it out"
        )
    config.option.harness_ranks = world.size
    return None


def pytest_unconfigure() -> None:
    from harness.ranks.world import World

    if World.here():
        from harness.ranks.other_hosts import dismiss

        dismiss()


@pytest.fixture(scope="session")
def harness_candidate(pytestconfig: pytest.Config) -> str:
    """The candidate under test, as named on the command line."""
    name: str = pytestconfig.getoption("--harness-candidate")
    return name


@pytest.fixture(scope="session")
def harness_against(pytestconfig: pytest.Config) -> Against:
    """What candidates are compared with, as the command line has it."""
    against: Against = pytestconfig.getoption("--harness-against")
    return against


@pytest.fixture(scope="session")
def harness_pool(pytestconfig: pytest.Config) -> "Iterator[RankPool]":
    """Ranks that stay up for the whole session; they start with the first case."""
    from harness.plugin.placement import place
    from harness.ranks.device import NoPlace
    from harness.ranks.other_hosts import other_hosts_here
    from harness.ranks.pool import RankPool

    ranks: int = pytestconfig.getoption("--harness-ranks")
    deadline: float = pytestconfig.getoption("--harness-deadline")
    nodes = other_hosts_here()
    try:
        placement = place(pytestconfig, ranks // (nodes.count if nodes else 1))
    except NoPlace as error:
        pytest.fail(f"--harness-{error}", pytrace=False)
    with RankPool(ranks, placement, nodes=nodes, deadline=deadline) as pool:
        yield pool
        pytestconfig.stash[JUDGED].launches += pool.launches


@pytest.fixture(scope="session")
def harness_evaluate(
    harness_pool: "RankPool",
    harness_candidate: str,
    harness_against: Against,
    pytestconfig: pytest.Config,
) -> Evaluate:
    """Judge a case: `harness_evaluate(case)`, or of another candidate, against something else."""
    from harness.candidates import locate
    from harness.judge import Job, Session
    from harness.judge.known import recognised

    stash, session = pytestconfig.stash, Session(harness_pool)

    def judge(
        case: "Case", candidate: str = harness_candidate, *, against: Against = harness_against
    ) -> "Comparison":
        if against not in get_args(Against):
            raise ValueError(f"against={against!r}: use one of {', '.join(get_args(Against))}")
        if candidate != harness_candidate:
            candidate = stash[RUNNING].beside(candidate)
        seen = session.judge_one(Job(case, locate(candidate), against))
        comparison = recognised(seen)
        stash[JUDGED].add(comparison)
        stash[RUNNING].add(seen, comparison, harness_pool)
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

    spared = {Verdict.KNOWN} if pytestconfig.getoption("--harness-known") == "pass" else set()

    def prove(case: "Case", *candidate: str, **options: Any) -> None:
        comparison = harness_evaluate(case, *candidate, **options)
        if comparison.verdict in spared:
            return
        if comparison.verdict is not Verdict.UNSUPPORTED:
            if not comparison.verdict.passed:
                raise NotProven(explain(comparison))
            return
        if currently_in_test_context():
            reject()
        whose = "" if comparison.swallowed else f"{comparison.candidate} does not support it: "
        pytest.skip(f"{whose}{comparison.reason}")

    return prove


@pytest.fixture(scope="session")
def harness_cases(
    harness_pool: "RankPool",
    harness_candidate: str,
    harness_against: Against,
    pytestconfig: pytest.Config,
) -> Cases:
    """A strategy for cases of a candidate: `harness_cases("mine.py:MINE", sps=(2, 4))`.

    They fit the pool, and the limits that the candidate states; ranks are asked for these once.
    """
    from harness.candidates import locate
    from harness.plugin.cases import fields_named, never_drawn, of
    from harness.ranks.pool import CannotStart
    from harness.report import explain_no_start
    from harness.untrusted import BadInput

    ranks: int = pytestconfig.getoption("--harness-ranks")
    limits: dict[str, str] = {}

    def strategy(candidate: str = harness_candidate, **options: Any) -> "SearchStrategy[Case]":
        if candidate != harness_candidate:
            candidate = pytestconfig.stash[RUNNING].beside(candidate)
        try:
            if candidate not in limits:
                limits[candidate] = harness_pool.limits(locate(candidate))
            told = {"against": harness_against, **options}
            # It is to be judged, whoever is named where that is done.
            coverage = pytestconfig.stash[RUNNING].of(candidate)
            coverage.asked |= Counter(never_drawn(limits[candidate], ranks, **options))
            pytestconfig.stash[RUNNING].drawn[candidate] = fields_named(**options)
            return of(candidate, limits[candidate], ranks, **told)
        except CannotStart as error:
            why = explain_no_start(error.fault)
        except BadInput as error:
            why = f"harness_cases of {candidate}: {error}"
        pytest.fail(why, pytrace=False)

    return strategy


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist hands what it judged to the controller."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[HANDED] = session.config.stash[JUDGED].record()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The controller of xdist takes it in."""
    told: dict[str, Any] = getattr(node, "workeroutput", {})
    judged = node.config.stash[JUDGED]
    if HANDED in told:
        judged.take_in(told[HANDED])
    else:
        # It died, and with it all that it judged.
        judged.lost += 1


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash[JUDGED].lines()
    if lines:
        terminalreporter.section("harness")
    for line in lines:
        for part in wrap(line, get_terminal_size().columns, break_on_hyphens=False):
            terminalreporter.write_line(part)
