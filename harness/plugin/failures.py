"""A test that fails names the bundle of its last comparison that was no pass.

Under Hypothesis that is the smallest.
"""

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.compare import Comparison
    from harness.ranks.pool import RankPool

# Of the running test, and the ranks that it was seen on.
LAST: pytest.StashKey["tuple[Comparison, RankPool] | None"] = pytest.StashKey()
# Whether one has been diagnosed: after a change that breaks many tests all say the same.
DIAGNOSED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("harness").addoption(
        "--harness-report",
        metavar="DIR",
        help="write an HTML page of every failure into this folder",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.config.stash[LAST] = None
    if "harness_pool" in getattr(item, "fixturenames", ()):
        from harness.plugin.examples import make_ready

        make_ready(getattr(item, "obj", None))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    last = item.config.stash.get(LAST, None)
    if last and call.excinfo and report.failed and report.when != "teardown":
        from harness.failure.bundle import DEFAULT_FOLDER
        from harness.failure.bundle.keep import keep
        from harness.judge import diagnosed
        from harness.plugin.examples import blob_of
        from harness.report import look_lines, replay

        seen, pool = last
        lines = []
        if not item.config.stash.get(DIAGNOSED, False):
            item.config.stash[DIAGNOSED] = True
            seen = diagnosed(seen, pool)
            lines = look_lines(seen) if seen.diagnosis else []
        folder = item.config.invocation_params.dir / DEFAULT_FOLDER
        blob = blob_of(call.excinfo.value)
        place = keep(seen, pool, test=item.nodeid, blob=blob, folder=folder)
        lines += [f"  replay  {replay(seen)}", f"  bundle  {place}"]
        pages = item.config.getoption("--harness-report")
        if pages is not None:
            lines.append(f"  page    {_page(seen, item.nodeid, place, Path(pages))}")
        report.sections.append(("harness", "\n".join(lines)))
    return report


def _page(seen: "Comparison", test: str, bundle: str, folder: Path) -> str:
    """Write its page; where that is, or why there is none."""
    from harness.report import comparison_record
    from harness.report.html import pages_of, save

    document = {**comparison_record(seen), "test": test, "bundle": bundle}
    try:
        return str(save(folder, pages_of(test, document))[0])
    except OSError as error:
        return f"could not be written: {error}"


def pytest_terminal_summary(config: pytest.Config) -> None:
    """Workers of xdist write at the same time: the index is made once more, of all they wrote."""
    pages = config.getoption("--harness-report")
    if pages is not None and Path(pages).is_dir():
        from harness.report.html import save

        save(Path(pages), [])
