"""Describe a machine as JSON: its GPUs, cores, memory and disks; needs no torch and no network."""

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Seconds for a command: a look-up of a name may take minutes if no name server answers.
PATIENCE = 30.0
GPU_FIELDS = (
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "compute_mode",
    "mig.mode.current",
)


def examine() -> dict[str, Any]:
    name = socket.gethostname()
    look_up = f"import socket; socket.getaddrinfo({name!r}, None)"
    return {
        "gpus": gpus(),
        "cores": len(os.sched_getaffinity(0)),
        "GB of memory": memory(),
        "GB free in the folder for temporary files": free(tempfile.gettempdir()),
        "GB free here": free("."),
        "GB free in /dev/shm": free("/dev/shm"),  # noqa: S108 - nothing is written there
        "system": platform.platform(),
        "python": platform.python_version(),
        "pidfd": pidfd(),
        "host": name,
        "seconds to look up the host's own name": seconds(look_up),
        # Twice: the first import reads the disk.
        "seconds to import torch": seconds("import torch"),
        "seconds to import torch again": seconds("import torch"),
    }


def gpus() -> list[dict[str, str]] | str:
    """Return what the driver reports of each GPU, or why it reports nothing."""
    query = f"--query-gpu={','.join(GPU_FIELDS)}"
    try:
        output = run("nvidia-smi", query, "--format=csv,noheader")
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return [dict(zip(GPU_FIELDS, line.split(", "), strict=False)) for line in output.splitlines()]


def memory() -> dict[str, float]:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return {key: int(lines[key].split()[0]) / 1e6 for key in ("MemTotal", "MemAvailable")}


def free(folder: str) -> float | str:
    try:
        return shutil.disk_usage(folder).free / 1e9
    except OSError as error:
        return str(error)


def pidfd() -> str:
    """Return `works` if Python and the kernel have pidfds, else the error."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        return str(error)
    return "works"


def seconds(code: str) -> float | str:
    """Return how long a Python process takes that runs only this code, or how it failed."""
    started = time.monotonic()
    try:
        run(sys.executable, "-c", code)
    except subprocess.TimeoutExpired:
        return f"more than {PATIENCE:.0f}"
    except subprocess.CalledProcessError as error:
        return str(error.stderr).strip().rpartition("\n")[2]
    return round(time.monotonic() - started, 2)


def run(*command: str) -> str:
    """Run a command, and return its output."""
    done = subprocess.run(command, check=True, timeout=PATIENCE, capture_output=True, text=True)
    return done.stdout


if __name__ == "__main__":
    print(json.dumps({"machine": examine()}, indent=1))
