"""The pytest plugin: fixtures that judge cases on a pool of ranks, and a summary at the end.

    @given(data=st.data())
    def test_my_step_is_plain_training(harness_cases, harness_prove, data):
        case = data.draw(harness_cases("mine.py:MINE", sps=(2, 4)))
        harness_prove(case, "mine.py:MINE")

1. A session has one pool, which starts with the first case. Under pytest-xdist every worker has a
   pool of its own. In a world, where a launcher such as torchrun has started several processes,
   those are the ranks.
2. `current_test` records what the running test judges. A fixture that several tests share has a
   record of its own, which counts for each test that takes the fixture.
3. `session_record` adds these records up. A green session can still prove nothing: so a failure
   that no test failed on, and too few cases of what was asked for, fail the session.
4. `failures` prints one block for a failing test, and keeps the failure as a bundle. `examples`
   adapts Hypothesis, `cases` makes its strategies, `profiles` its profiles.
5. `needs` skips tests on machines without their device, and `placement` says where ranks run.
"""

from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Callable, Iterator
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import pytest

from harness.against import PLAIN, Against
from harness.plugin import current_test, failures, needs, profiles
from harness.plugin.current_test import RUNNING
from harness.plugin.failures import NotProven
from harness.plugin.session_record import SESSION, SessionRecord
from harness.untrusted import BadInput

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from harness.case import Case
    from harness.compare import Comparison
    from harness.ranks.pool import RankPool

Evaluate = Callable[..., "Comparison"]
Prove = Callable[..., None]
Cases = Callable[..., "SearchStrategy[Case]"]
DEFAULT_CANDIDATE = "native-gather"
DEFAULT_RANKS = 4
# The key under which a worker of pytest-xdist sends its session record to the controller.
RECORD_KEY = "harness"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    for part in (current_test, failures, needs, profiles):
        pluginmanager.register(part, f"harness-{part.__name__.rpartition('.')[2]}")
    group = parser.getgroup("harness", "sequence-parallel equivalence")
    group.addoption(
        "--harness-candidate",
        default=DEFAULT_CANDIDATE,
        metavar="C",
        help="a built-in name, path/to/file.py:NAME or package.module:NAME",
    )
    group.addoption(
        "--harness-against",
        default=PLAIN,
        type=_read_reference,
        metavar="plain|self|FILE:RECIPE",
        help="plain: compare with plain training; self: with the candidate's own step at sp 1; "
        "FILE:RECIPE: with plain training of that recipe; default: plain",
    )
    group.addoption(
        "--harness-ranks",
        type=int,
        metavar="N",
        help=f"ranks in the pool; default: {DEFAULT_RANKS}",
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


def _read_reference(text: str) -> Against:
    from harness.candidates import require_reference

    try:
        return require_reference(text)
    except BadInput as error:
        raise ArgumentTypeError(str(error)) from None


def pytest_configure(config: pytest.Config) -> None:
    named = config.getoption("--harness-candidate")
    config.stash[SESSION] = SessionRecord(named="" if named == DEFAULT_CANDIDATE else named)
    if config.option.harness_ranks is None:
        config.option.harness_ranks = DEFAULT_RANKS


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """In a world, run the session in its first process only, and serve ranks in the others."""
    from harness.worlds.world import World

    world = World.here()
    if world is None:
        return None
    if not world.is_first:
        from harness.worlds.host_keeper import serve_ranks

        return 0 if serve_ranks(world) else 3
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
    from harness.worlds.world import World

    if World.here():
        from harness.worlds.other_hosts import release_hosts

        release_hosts()


@pytest.fixture(scope="session")
def harness_candidate(pytestconfig: pytest.Config) -> str:
    """The candidate under test, as named on the command line."""
    name: str = pytestconfig.getoption("--harness-candidate")
    return name


@pytest.fixture(scope="session")
def harness_against(pytestconfig: pytest.Config) -> Against:
    """The reference of candidates, `plain`, `self` or a recipe, as given on the command line."""
    against: Against = pytestconfig.getoption("--harness-against")
    return against


@pytest.fixture(scope="session")
def harness_pool(pytestconfig: pytest.Config) -> "Iterator[RankPool]":
    """Ranks that stay up for the whole session; they start with the first case."""
    from harness.plugin.placement import place
    from harness.ranks.device import ImpossiblePlacement
    from harness.ranks.pool import RankPool
    from harness.worlds.other_hosts import connect_other_hosts

    ranks: int = pytestconfig.getoption("--harness-ranks")
    deadline: float = pytestconfig.getoption("--harness-deadline")
    nodes = connect_other_hosts()
    try:
        placement = place(pytestconfig, ranks // (nodes.count if nodes else 1))
    except ImpossiblePlacement as error:
        pytest.fail(f"--harness-{error}", pytrace=False)
    with RankPool(ranks, placement, nodes=nodes, deadline=deadline) as pool:
        yield pool
        pytestconfig.stash[SESSION].launches += pool.launches


@pytest.fixture(scope="session")
def harness_evaluate(
    harness_pool: "RankPool",
    harness_candidate: str,
    harness_against: Against,
    pytestconfig: pytest.Config,
) -> Evaluate:
    """Judge a case and return the comparison: `harness_evaluate(case, "mine.py:MINE")`.

    The candidate and `against` default to those of the command line.
    """
    from harness.candidates import locate, require_reference
    from harness.judge import Job, Session
    from harness.judge.known import mark_known

    stash, session = pytestconfig.stash, Session(harness_pool)

    def judge(
        case: "Case", candidate: str = harness_candidate, *, against: Against = harness_against
    ) -> "Comparison":
        if against != harness_against:
            against = require_reference(stash[RUNNING].find_beside(against))
        if candidate != harness_candidate:
            candidate = stash[RUNNING].find_beside(candidate)
        comparison = session.judge_one(Job(case, locate(candidate), against))
        counted = mark_known(comparison)
        stash[SESSION].add(counted)
        stash[RUNNING].add(comparison, counted, harness_pool)
        return counted

    return judge


@pytest.fixture(scope="session")
def harness_prove(harness_evaluate: Evaluate, pytestconfig: pytest.Config) -> Prove:
    """Judge a case, and fail with the explanation if it does not pass.

    A case that the candidate does not support skips the test, or makes Hypothesis draw another
    one. The summary counts these cases.
    """
    from hypothesis import currently_in_test_context, reject

    from harness.compare import Verdict
    from harness.report import explain

    excused = {Verdict.KNOWN} if pytestconfig.getoption("--harness-known") == "pass" else set()

    def prove(case: "Case", *candidate: str, **options: Any) -> None:
        comparison = harness_evaluate(case, *candidate, **options)
        if comparison.verdict in excused:
            return
        if comparison.verdict is not Verdict.UNSUPPORTED:
            if not comparison.verdict.passed:
                raise NotProven(explain(comparison))
            return
        if currently_in_test_context():
            reject()
        refusal = "" if comparison.swallowed else f"{comparison.candidate} does not support it: "
        pytest.skip(f"{refusal}{comparison.reason}")

    return prove


@pytest.fixture(scope="session")
def harness_cases(
    harness_pool: "RankPool",
    harness_candidate: str,
    harness_against: Against,
    pytestconfig: pytest.Config,
) -> Cases:
    """Return a strategy for cases of a candidate: `harness_cases("mine.py:MINE", sps=(2, 4))`.

    The cases fit the pool and the limits that the candidate states.
    """
    from harness.candidates import locate
    from harness.plugin.cases import impossible_values, named_fields, strategy_for
    from harness.ranks.pool import CannotStart
    from harness.report import explain_no_start
    from harness.untrusted import BadInput

    ranks: int = pytestconfig.getoption("--harness-ranks")
    # By candidate; only ranks can import it and read them.
    limits: dict[str, str] = {}

    def strategy(candidate: str = harness_candidate, **options: Any) -> "SearchStrategy[Case]":
        running = pytestconfig.stash[RUNNING]
        if candidate != harness_candidate:
            candidate = running.find_beside(candidate)
        try:
            if candidate not in limits:
                limits[candidate] = harness_pool.limits(locate(candidate))
            # From here on this candidate must be judged: a test may judge another one by mistake.
            coverage = running.coverage_of(candidate)
            coverage.asked |= Counter(impossible_values(limits[candidate], ranks, **options))
            running.drawn[candidate] = named_fields(**options)
            options = {"against": harness_against, **options}
            options["against"] = running.find_beside(options["against"])
            return strategy_for(candidate, limits[candidate], ranks, **options)
        except CannotStart as error:
            why = explain_no_start(error.fault)
        except BadInput as error:
            why = f"harness_cases of {candidate}: {error}"
        pytest.fail(why, pytrace=False)

    return strategy


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of pytest-xdist, send the session record to the controller."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[RECORD_KEY] = session.config.stash[SESSION].record()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """In the controller of pytest-xdist, add the session record of a worker."""
    output: dict[str, Any] = getattr(node, "workeroutput", {})
    session = node.config.stash[SESSION]
    if RECORD_KEY in output:
        session.add_record(output[RECORD_KEY])
    else:
        # The worker died before it sent its record.
        session.lost += 1


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash[SESSION].lines()
    if lines:
        terminalreporter.section("harness")
    for line in lines:
        for part in wrap(line, get_terminal_size().columns, break_on_hyphens=False):
            terminalreporter.write_line(part)
