"""A program that ends in time, and all that it started with it."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

# Its last tenth is for ending it, and no more than so many seconds: what is asked to end says
# what it knows.
LONGEST_GOODBYE = 20.0
# When all of it is to end, whoever said so may not wait.
HURRY = 4.0
CUT_OFF = 124


def run(
    command: Sequence[str | Path],
    seconds: float,
    environment: Mapping[str, str],
    output: Path,
    errors: Path,
) -> int:
    """How it ended: its exit status, or CUT_OFF where it did not end by itself."""
    began, goodbye = time.monotonic(), min(LONGEST_GOODBYE, seconds / 10)
    # They may be the same.
    with output.open("ab") as out, errors.open("ab") as err:
        # A group of its own, so that all of it can be told to end, and no session: whoever ends
        # ours ends it as well.
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            process_group=0,
        )  # fmt: skip
    try:
        status = _waited(process, began + seconds - goodbye)
    except BaseException:
        _end(process, time.monotonic() + HURRY)
        raise
    if status is None:
        _end(process, began + seconds)
        return CUT_OFF
    _signal(process, signal.SIGKILL)
    return status if status >= 0 else 128 - status


def _waited(process: "subprocess.Popen[bytes]", until: float) -> int | None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(max(0.0, until - time.monotonic()))
    return None


def _end(process: "subprocess.Popen[bytes]", until: float) -> None:
    """Asked twice, then killed, with whatever is left of its group."""
    half = (until - time.monotonic()) / 2
    for number, moment in ((signal.SIGINT, until - half), (signal.SIGTERM, until)):
        _signal(process, number)
        if _waited(process, moment) is not None:
            break
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
