"""Tests that need a device: they are skipped without it, and fail if the device is required.

    @pytest.mark.needs("cuda")
    def test_on_a_gpu(): ...

On a GPU runner, `--harness-require cuda` keeps a session from passing by skipping these tests.
"""

import pytest

WANT = "for want of "
DEVICES = ("cuda", "npu", "xpu")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("harness").addoption(
        "--harness-require",
        choices=DEVICES,
        help="fail, instead of skip, every test that needs this device if there is none",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(device): runs on this device only, such as cuda")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        (device,) = mark.args
        if device not in DEVICES:
            pytest.fail(f"needs({device!r}): use one of {', '.join(DEVICES)}", pytrace=False)
        why = why_missing(device)
        if why and item.config.getoption("--harness-require") == device:
            pytest.fail(f"--harness-require={device}: not run, {why}", pytrace=False)
        if why:
            pytest.skip(f"{WANT}{device}: {why}")


def why_missing(device: str) -> str:
    """Return why ranks cannot run on this device; an empty text if they can."""
    from harness.ranks.device import ImpossiblePlacement, choose_placement

    try:
        choose_placement(device, "auto", 1)
    except ImpossiblePlacement as error:
        return str(error)
    return ""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that were skipped: their number alone is easily overlooked."""
    for device in DEVICES:
        skipped = [
            report.nodeid
            for report in terminalreporter.getreports("skipped")
            if isinstance(report.longrepr, tuple) and f"{WANT}{device}: " in report.longrepr[2]
        ]
        if skipped:
            count = f"{len(skipped)} test{'s' if len(skipped) > 1 else ''}"
            terminalreporter.section(f"{count} not run {WANT}{device}")
            for nodeid in skipped:
                terminalreporter.write_line(nodeid)
