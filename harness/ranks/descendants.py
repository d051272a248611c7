"""Whatever a process started, found and ended, wherever it has got to."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

# In the environment of everything that belongs to one supervisor: where it connects to.
ADDRESS = "HARNESS_SOCKET"
# As the kernel's header has it.
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# A process that survives SIGKILL for longer is stuck in the kernel: nothing else will help.
PATIENCE = 2.0


def adopt_orphans() -> None:
    """Whatever loses its parent below this process becomes a child of it, and can be found."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def wake_when_orphaned() -> None:
    """Somebody may have stopped us by the time that our parent is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


def kill_below(pids: Iterable[int]) -> None:
    """Kill all that these processes started, also where nothing is left of its environment."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name before the bracket may hold anything; two fields on stands the parent.
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                children.setdefault(int(parent), []).append(int(entry.name))
    below = [child for pid in pids for child in children.get(pid, ())]
    for pid in below:
        below += children.get(pid, ())
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def bury_all_below() -> None:
    """Kill all that this process started or has adopted, and wait for each of them."""
    with contextlib.suppress(ChildProcessError):
        while True:
            # What one of them had started is ours as soon as that one is gone.
            for file in Path("/proc/self/task").glob("*/children"):
                # Threads end while we look, and a process may be another user's by now.
                with contextlib.suppress(OSError):
                    for pid in map(int, file.read_text().split()):
                        os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def kill_group(pid: int) -> None:
    """End a process and its group, if they are still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def sweep(address: str) -> None:
    """Kill whatever carries this address in its environment."""
    until = time.monotonic() + PATIENCE
    while (found := set(_marked(address))) and time.monotonic() < until:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _marked(address: str) -> Iterator[int]:
    mark = f"{ADDRESS}={address}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        # Processes end while we look, and those of other users are none of ours.
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)
