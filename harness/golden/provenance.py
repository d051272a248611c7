"""Where tensors come from: what may move their last bits."""

import platform
import re
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
# What /proc/cpuinfo calls what tells one processor from another.
PROCESSOR = ("model name", "cpu family", "model", "stepping")


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
        "processor": processor(),
        **{name: what for name, what in there.items() if name not in SAME_ANYWHERE},
    }


def processor() -> str:
    """Its make and model, as far as the system tells: libraries choose kernels by it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    told = dict(re.split(r"\s*:\s*", line, maxsplit=1) for line in lines if ":" in line)
    return " ".join(told[word] for word in PROCESSOR if word in told) or platform.processor()


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
