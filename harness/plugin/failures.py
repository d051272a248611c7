"""Report failures: one block for a failing test, and at the end what no test failed on.

The block explains the last comparison of the test that did not pass, which under Hypothesis is
the smallest, and names the bundle that keeps it.
"""

import math
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.plugin.current_test import (
    ON_PURPOSE,
    RUNNING,
    records_of,
    report_to_session,
    takes_judging_fixture,
)
from harness.plugin.session_record import SESSION

if TYPE_CHECKING:
    from harness.compare import Comparison
    from harness.ranks.pool import RankPool


class NotProven(AssertionError):
    """A case of `harness_prove` did not pass; the message is the explanation."""


# From the message of pytest about a test that is parametrized with an empty list.
NO_PARAMETERS = "got empty parameter set"
# Whether a failure was diagnosed. Only the first one is: one change can break many tests, and
# their diagnoses would be the same.
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
        from harness.plugin.examples import adapt_settings

        adapt_settings(getattr(item, "obj", None))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    running = item.config.stash[RUNNING]
    running.failed |= report.failed
    running.xfailed |= report.skipped and hasattr(report, "wasxfail")
    if report.skipped and NO_PARAMETERS in str(report.longrepr) and takes_judging_fixture(item):
        item.config.stash[SESSION].empty.append(item.nodeid)
    running.passed |= report.passed and report.when == "call"
    last = next((record.last for record in records_of(item) if record.last), None)
    if last and call.excinfo and report.failed and report.when != "teardown":
        title, block = _explain(item, call.excinfo.value, *last)
        if isinstance(call.excinfo.value, NotProven):
            call.excinfo.value.args = (block,)
            shown = call.excinfo.getrepr(style="value", chain=False)
            if shown.reprcrash is not None:
                # If CI is set, pytest's summary shows the whole message; one line is enough.
                shown.reprcrash.message = title
            report.longrepr = shown
        else:
            report.sections.append(("harness", block))
    if report.when == "teardown":
        report_to_session(item)
    return report


def _explain(
    item: pytest.Item, error: BaseException, failure: "Comparison", pool: "RankPool"
) -> tuple[str, str]:
    """Return a headline, and the block that explains a failure and names its bundle."""
    from harness.failure.bundle import DEFAULT_FOLDER
    from harness.failure.bundle.keep import keep_bundle
    from harness.judge import Session, add_diagnosis
    from harness.plugin.examples import blob_of
    from harness.report import brief, headline
    from harness.report.brief import MOST_LINES

    if failure.verdict.name == "UNSUPPORTED":
        hint = f'\n  next    harness_cases("{failure.candidate}") draws within its limits'
        return headline(failure), headline(failure) + hint * bool(failure.limits)
    if not item.config.stash.get(DIAGNOSED, False):
        item.config.stash[DIAGNOSED] = True
        failure = add_diagnosis(failure, Session(pool))
    folder = item.config.invocation_params.dir / DEFAULT_FOLDER
    bundle = keep_bundle(failure, pool, test=item.nodeid, blob=blob_of(error), folder=folder)
    last_lines = [f"  bundle  {bundle}"]
    pages = item.config.getoption("--harness-report")
    if pages is not None:
        last_lines.append(f"  page    {_save_page(failure, item.nodeid, bundle, Path(pages))}")
    most = math.inf if item.config.get_verbosity() > 0 else MOST_LINES
    return headline(failure), brief(failure, last_lines, most)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    # Only the controller of pytest-xdist knows the whole session; a worker knows a part.
    if hasattr(config, "workerinput") or config.getoption("--harness-unseen") != "fail":
        return
    record = config.stash[SESSION]
    proves_too_little = record.unseen or record.unexamined or record.leans
    if proves_too_little and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _save_page(failure: "Comparison", test: str, bundle: str, folder: Path) -> str:
    """Write the page of a failure; return its path, or why it could not be written."""
    from harness.report import comparison_record
    from harness.report.html import pages_of, save

    document = {**comparison_record(failure), "test": test, "bundle": bundle}
    try:
        return str(save(folder, pages_of(test, document))[0])
    except OSError as error:
        return f"could not be written: {error}"


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    session = config.stash[SESSION]
    unseen = session.unseen
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
    leans = session.leans
    if leans:
        terminalreporter.section("off by the same in every case, and too little for one")
        for line in leans:
            terminalreporter.write_line(line)
    unexamined = session.unexamined
    if unexamined:
        terminalreporter.section("too little was examined")
        for line in unexamined:
            terminalreporter.write_line(line)
        if config.getoption("--harness-unseen") == "fail":
            terminalreporter.write_line(
                "The session fails. Draw other cases or more of them, ask for less with sps=, or "
                "use --harness-unseen tell"
            )
    # Workers of pytest-xdist overwrite each other's index of pages, so it is written once more.
    pages = config.getoption("--harness-report")
    if pages is not None and Path(pages).is_dir():
        from harness.report.html import save

        save(Path(pages), [])
