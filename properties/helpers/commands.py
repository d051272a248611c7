"""Commands that tests run to their end."""

import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

from properties.helpers.places import ROOT

DEADLINE = 300


def ran(
    *command: str | Path, cwd: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """What a command said and how it ended; it finds this project, and these variables."""
    known = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        command, cwd=cwd, env=known, capture_output=True, text=True, check=False, timeout=DEADLINE
    )


def seconds_of(run: Callable[[], object]) -> float:
    """What the commands in it take of a processor; a busy machine may take its time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
