"""Commands that tests run, to their end or beside them, and what they print."""

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


def ran(
    *command: str | Path, cwd: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """What a command said and how it ended; it finds this project, and these variables."""
    with running(*command, cwd=cwd, **variables) as process:
        said, log = process.communicate(timeout=DEADLINE)
    return subprocess.CompletedProcess(process.args, process.returncode, said, log)


@contextmanager
def running(
    *command: str | Path, cwd: Path = ROOT, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """The same, under way; it does not outlive the test."""
    with subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def options_of(*words: str) -> Any:
    """What a command line asks a command for."""
    _, given = read(words)
    return given.arguments["options"]


def campaign_of(text: str) -> Any:
    """What `check --json` printed, but for times and where it ran."""
    said = json.loads(text)
    for name in ("seconds", "placement"):
        said.pop(name)
    for tally in said["candidates"].values():
        tally.pop("pace")
    return said


def seconds_of(run: Callable[[], object]) -> float:
    """What the commands in it take of a processor; a busy machine may take its time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
