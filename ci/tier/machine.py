"""What a machine is, as JSON, by means that need neither torch nor a network."""

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

# A name server that does not answer is asked for minutes.
PATIENCE = 30.0
GPU = ("name", "driver_version", "memory.total", "memory.used", "compute_mode", "mig.mode.current")


def examined() -> dict[str, Any]:
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
        # The disk is read once.
        "seconds to import torch": seconds("import torch"),
        "seconds to import torch again": seconds("import torch"),
    }


def gpus() -> list[dict[str, str]] | str:
    """What the driver says of each; or why there is nothing to say."""
    try:
        told = printed("nvidia-smi", f"--query-gpu={','.join(GPU)}", "--format=csv,noheader")
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return [dict(zip(GPU, line.split(", "), strict=False)) for line in told.splitlines()]


def memory() -> dict[str, float]:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return {key: int(lines[key].split()[0]) / 1e6 for key in ("MemTotal", "MemAvailable")}


def free(folder: str) -> float | str:
    try:
        return shutil.disk_usage(folder).free / 1e9
    except OSError as error:
        return str(error)


def pidfd() -> str:
    """Whether the kernel has it, whatever Python has."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        return str(error)
    return "works"


def seconds(code: str) -> float | str:
    """Of a process that does this and nothing else, or how it failed."""
    began = time.monotonic()
    try:
        printed(sys.executable, "-c", code)
    except subprocess.TimeoutExpired:
        return f"more than {PATIENCE:.0f}"
    except subprocess.CalledProcessError as error:
        return str(error.stderr).strip().rpartition("\n")[2]
    return round(time.monotonic() - began, 2)


def printed(*command: str) -> str:
    done = subprocess.run(command, check=True, timeout=PATIENCE, capture_output=True, text=True)
    return done.stdout


if __name__ == "__main__":
    print(json.dumps({"machine": examined()}, indent=1))
