"""Run a program with a time limit, and end all processes of its group with it."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

# The last tenth of the limit, up to so many seconds, is for the program to end: a program that is
# interrupted prints what it knows.
LONGEST_GRACE = 20.0
# Seconds of grace if this process itself must end, since it may be killed soon.
SHORT_GRACE = 4.0
CUT_OFF = 124


def run(
    command: Sequence[str | Path],
    seconds: float,
    environment: Mapping[str, str],
    output: Path,
    errors: Path,
) -> int:
    """Run a command for at most so many seconds; return its exit status, or CUT_OFF."""
    started, grace = time.monotonic(), min(LONGEST_GRACE, seconds / 10)
    # Both are appended to, because they may be the same file.
    with output.open("ab") as out, errors.open("ab") as err:
        # A process group of its own, so that a signal reaches all of it, but no session of its
        # own, so that it ends with our session.
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            process_group=0,
        )  # fmt: skip
    try:
        status = _wait(process, started + seconds - grace)
    except BaseException:
        _end(process, time.monotonic() + SHORT_GRACE)
        raise
    if status is None:
        _end(process, started + seconds)
        return CUT_OFF
    _signal(process, signal.SIGKILL)
    return status if status >= 0 else 128 - status


def _wait(process: "subprocess.Popen[bytes]", until: float) -> int | None:
    """Wait until the process ends; return its exit status, or None if the time is over."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(max(0.0, until - time.monotonic()))
    return None


def _end(process: "subprocess.Popen[bytes]", until: float) -> None:
    """Send SIGINT, then SIGTERM, then kill what is left of the process group."""
    half = (until - time.monotonic()) / 2
    for number, moment in ((signal.SIGINT, until - half), (signal.SIGTERM, until)):
        _signal(process, number)
        if _wait(process, moment) is not None:
            break
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
