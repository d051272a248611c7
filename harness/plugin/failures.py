"""A test that fails says why in one block, and where the bundle of its last failure is.

Under Hypothesis that is the smallest. A failure that no test failed on is told at the end.
"""

import math
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.plugin.current_test import ON_PURPOSE, RUNNING, is_judging, taken, tell
from harness.plugin.session_record import JUDGED

if TYPE_CHECKING:
    from harness.compare import Comparison
    from harness.ranks.pool import RankPool


class NotProven(AssertionError):
    """What was to be proven of a case does not hold."""


# What pytest says of a test that is parametrized with nothing.
NO_PARAMETERS = "got empty parameter set"
# Whether one has been diagnosed: after a change that breaks many tests all say the same.
DIAGNOSED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("harness")
    group.addoption(
        "--harness-report",
        metavar="DIR",
        help="write an HTML page of every failure into this folder",
    )
    group.addoption(
        "--harness-unseen",
        default="fail",
        choices=("fail", "tell"),
        help="what comes of a failure that no test failed on, and of what was to be proven and "
        "was examined on too little; default: fail, the whole session",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if "harness_pool" in getattr(item, "fixturenames", ()):
        from harness.plugin.examples import make_ready

        make_ready(getattr(item, "obj", None))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    running = item.config.stash[RUNNING]
    running.failed |= report.failed
    running.excused |= report.skipped and hasattr(report, "wasxfail")
    if report.skipped and NO_PARAMETERS in str(report.longrepr) and is_judging(item):
        item.config.stash[JUDGED].empty.append(item.nodeid)
    running.passed |= report.passed and report.when == "call"
    last = next((part.last for part in taken(item) if part.last), None)
    if last and call.excinfo and report.failed and report.when != "teardown":
        told, block = _told(item, call.excinfo.value, *last)
        if isinstance(call.excinfo.value, NotProven):
            call.excinfo.value.args = (block,)
            shown = call.excinfo.getrepr(style="value", chain=False)
            if shown.reprcrash is not None:
                # pytest's summary shows all of it where CI is set: one line is enough there.
                shown.reprcrash.message = told
            report.longrepr = shown
        else:
            report.sections.append(("harness", block))
    if report.when == "teardown":
        tell(item)
    return report


def _told(
    item: pytest.Item, error: BaseException, seen: "Comparison", pool: "RankPool"
) -> tuple[str, str]:
    """The name of a failure, and the block that explains it and says where it is kept."""
    from harness.failure.bundle import DEFAULT_FOLDER
    from harness.failure.bundle.keep import keep
    from harness.judge import Session, diagnosed
    from harness.plugin.examples import blob_of
    from harness.report import brief, headline
    from harness.report.brief import MOST_LINES

    if seen.verdict.name == "UNSUPPORTED":
        hint = f'\n  next    harness_cases("{seen.candidate}") draws within its limits'
        return headline(seen), headline(seen) + hint * bool(seen.limits)
    if not item.config.stash.get(DIAGNOSED, False):
        item.config.stash[DIAGNOSED] = True
        seen = diagnosed(seen, Session(pool))
    folder = item.config.invocation_params.dir / DEFAULT_FOLDER
    place = keep(seen, pool, test=item.nodeid, blob=blob_of(error), folder=folder)
    after = [f"  bundle  {place}"]
    pages = item.config.getoption("--harness-report")
    if pages is not None:
        after.append(f"  page    {_page(seen, item.nodeid, place, Path(pages))}")
    most = math.inf if item.config.get_verbosity() > 0 else MOST_LINES
    return headline(seen), brief(seen, after, most)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    # A worker of xdist judges a part of what the session does.
    if hasattr(config, "workerinput") or config.getoption("--harness-unseen") != "fail":
        return
    judged = config.stash[JUDGED]
    if (
        judged.unseen or judged.unexamined or judged.leans
    ) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _page(seen: "Comparison", test: str, bundle: str, folder: Path) -> str:
    """Write its page; where that is, or why there is none."""
    from harness.report import comparison_record
    from harness.report.html import pages_of, save

    document = {**comparison_record(seen), "test": test, "bundle": bundle}
    try:
        return str(save(folder, pages_of(test, document))[0])
    except OSError as error:
        return f"could not be written: {error}"


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    unseen = config.stash[JUDGED].unseen
    if unseen:
        count = f"{len(unseen)} test{'s' if len(unseen) > 1 else ''}"
        terminalreporter.section(f"{count} did not fail where a case failed")
        for nodeid, text in unseen.items():
            terminalreporter.write_line(f"{nodeid} {text}")
        if config.getoption("--harness-unseen") == "fail":
            terminalreporter.write_line(
                "The session fails. Assert the verdict, or use harness_prove; mark what tests a "
                f"wrong step @pytest.mark.{ON_PURPOSE}; or use --harness-unseen tell"
            )
    leans = config.stash[JUDGED].leans
    if leans:
        terminalreporter.section("off by the same in every case, and too little for one")
        for what in leans:
            terminalreporter.write_line(what)
    unexamined = config.stash[JUDGED].unexamined
    if unexamined:
        terminalreporter.section("too little was examined")
        for what in unexamined:
            terminalreporter.write_line(what)
        if config.getoption("--harness-unseen") == "fail":
            terminalreporter.write_line(
                "The session fails. Draw other cases or more of them, ask for less with sps=, or "
                "use --harness-unseen tell"
            )
    # Workers of xdist write at the same time: the index is made once more, of all they wrote.
    pages = config.getoption("--harness-report")
    if pages is not None and Path(pages).is_dir():
        from harness.report.html import save

        save(Path(pages), [])
