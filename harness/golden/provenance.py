"""The environment that may move the last bits of tensors: versions, processor and device."""

import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

import harness

# Increased when goldens are made in another way than before.
GENERATOR = "1"
# Fields of a pool's place that move no bit.
WITHOUT_EFFECT = ("devices", "ranks")
# The fields of /proc/cpuinfo that identify a processor.
PROCESSOR_FIELDS = ("model name", "cpu family", "model", "stepping")


def fingerprint(place: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return versions, platform, processor, and the place of a pool; without one, this CPU."""
    place = place or {"device": "cpu"}
    return {
        "generator": GENERATOR,
        "harness": harness.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "processor": processor(),
        **{name: value for name, value in place.items() if name not in WITHOUT_EFFECT},
    }


def processor() -> str:
    """Return the processor's make and model, as far as known: libraries choose kernels by it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    fields = dict(re.split(r"\s*:\s*", line, maxsplit=1) for line in lines if ":" in line)
    known = [fields[name] for name in PROCESSOR_FIELDS if name in fields]
    return " ".join(known) or platform.processor()


def commit(folder: Path) -> str:
    """Return the commit that is checked out in a folder, or `unknown`."""
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
