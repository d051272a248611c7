"""Where tensors come from: what may move their last bits."""

import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

import harness

# Raised when goldens are made in another way than before.
GENERATOR = "1"


# Which ranks they were, and where those of one pool went, moves no bit.
SAME_ANYWHERE = ("devices", "ranks")


def fingerprint(place: Mapping[str, str] | None = None) -> dict[str, str]:
    """Versions, platform and processor, and where ranks computed; here, where none did."""
    there = place or {"device": "cpu"}
    return {
        "generator": GENERATOR,
        "harness": harness.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
        **{name: what for name, what in there.items() if name not in SAME_ANYWHERE},
    }


def commit(folder: Path) -> str:
    """What is checked out, if anything is."""
    try:
        git = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return git.stdout.strip()
