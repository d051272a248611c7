"""Run commands in tests, to their end or in the background, and read what they print."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.cli import read
from properties.helpers.places import ROOT

DEADLINE = 300
HARNESS = (sys.executable, "-m", "harness")
# With it a process can import this project, and what only the path of this process leads to.
IMPORTS = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}


def run_to_end(
    *command: str | Path, cwd: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end with these variables; it can import this project."""
    with run_in_background(*command, cwd=cwd, **variables) as process:
        output, errors = process.communicate(timeout=DEADLINE)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@contextmanager
def run_in_background(
    *command: str | Path, cwd: Path = ROOT, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a command in the background; it is killed when the context ends."""
    with subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **IMPORTS, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def options_of(*words: str) -> Any:
    """Parse a command line and return the command's options."""
    _, parsed = read(words)
    return parsed.arguments["options"]


def campaign_of(text: str) -> Any:
    """Read what `check --json` printed, without times and without where it ran."""
    document = json.loads(text)
    for name in ("seconds", "placement"):
        document.pop(name)
    for tally in document["candidates"].values():
        tally.pop("pace")
    return document


def seconds_of(run: Callable[[], object]) -> float:
    """Return the processor time of the commands that a function runs; waiting does not count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def times_of_importing(run: Callable[[], object]) -> float:
    """Return how often what a command takes could import the libraries of the command line.

    Processor time depends on what else a machine does; both take more of it then. So they run in
    turns, and the least of each counts.
    """

    def import_libraries() -> None:
        run_to_end(sys.executable, "-c", "import cyclopts.help, rich.console, rich.table")

    pairs = [(seconds_of(run), seconds_of(import_libraries)) for _ in range(5)]
    return min(own for own, _ in pairs) / min(libraries for _, libraries in pairs)
