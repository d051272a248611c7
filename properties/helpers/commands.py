"""Commands that tests run to their end."""

import os
import subprocess
from pathlib import Path

from properties.helpers.places import ROOT


def ran(
    *command: str | Path, cwd: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """What a command said and how it ended; it finds this project, and these variables."""
    known = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command, cwd=cwd, env=known, capture_output=True, text=True, check=False)
