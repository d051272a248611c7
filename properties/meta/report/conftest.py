"""A browser for tests; without one they are skipped, or fail if pytest has `--browser`."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

INSTALL = "apt-get install chromium; .venv/bin/pip install '.[browser]'"


@pytest.fixture(scope="session")
def browser(pytestconfig: pytest.Config) -> Iterator[Any]:
    """Start Debian's chromium with playwright."""
    program = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        program = None
    if program is None:
        refuse = pytest.fail if pytestconfig.getoption("--browser") else pytest.skip
        refuse(f"for want of a browser: {INSTALL}")
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()
