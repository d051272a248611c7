"""A browser, where there is one. Who needs it says so: `--browser` fails instead of skipping."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

HOW = "apt-get install chromium; .venv/bin/pip install '.[browser]'"


@pytest.fixture(scope="session")
def browser(pytestconfig: pytest.Config) -> Iterator[Any]:
    """Debian's chromium, driven by playwright."""
    program = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        program = None
    if program is None:
        refuse = pytest.fail if pytestconfig.getoption("--browser") else pytest.skip
        refuse(f"for want of a browser: {HOW}")
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()
