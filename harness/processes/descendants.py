"""Find and kill every process that a process started, also in another session."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

# The variable that holds the socket address of a supervisor, in all processes that belong to it.
ADDRESS = "HARNESS_SOCKET"
# Constants of the kernel's prctl.h.
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# Seconds. A process that survives SIGKILL for longer is stuck in the kernel.
PATIENCE = 2.0


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat, from the process state on; `OSError` if it is gone."""
    # The process name before the bracket may hold any character.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if not fields:
        # Some kernels let a process that ends while its file is read have an empty file.
        raise ProcessLookupError(f"process {pid} has ended")
    return fields


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own, so that it can be found."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def signal_when_orphaned(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def kill_below(pids: Iterable[int]) -> None:
    """Kill all descendants of these processes, also those with an empty environment."""
    children: dict[int, list[int]] = {}
    for pid in _all_pids():
        with contextlib.suppress(OSError):
            children.setdefault(int(stat_fields(pid)[1]), []).append(pid)
    below = [child for pid in pids for child in children.get(pid, ())]
    for pid in below:
        below += children.get(pid, ())
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def bury_all_below() -> None:
    """Kill all children of this process, and the orphans that it adopts, and wait for each."""
    with contextlib.suppress(ChildProcessError):
        while True:
            # When a child ends, this process adopts the children that it had.
            for file in Path("/proc/self/task").glob("*/children"):
                # Threads end meanwhile, and a child may belong to another user by now.
                with contextlib.suppress(OSError):
                    for pid in map(int, file.read_text().split()):
                        os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def kill_group(pid: int) -> None:
    """Kill a process and its group, if they still exist."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def sweep(address: str) -> None:
    """Kill every process that has this address in its environment."""
    until = time.monotonic() + PATIENCE
    while (found := set(_with_address(address))) and time.monotonic() < until:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _with_address(address: str) -> Iterator[int]:
    variable = f"{ADDRESS}={address}".encode()
    for pid in _all_pids():
        # Processes end meanwhile, and those of other users cannot be read.
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if variable in environment and pid != os.getpid():
                yield pid


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
