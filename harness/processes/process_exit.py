"""Wait for the end of a process as for a socket, and put it in words."""

import contextlib
import os
import signal
import threading
import time

from harness.processes.descendants import stat_fields

POLL = 0.05
# How `describe_exit` begins for a signal.
KILLED = "killed by"


def exit_handle(pid: int) -> int:
    """Return a descriptor that is readable once the process has ended.

    Raise `ProcessLookupError` if there is no such process. Kernels of some sandboxes and some
    builds of Python have no process handles; then a thread polls.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        os.kill(pid, 0)
        readable, writable = os.pipe()
        threading.Thread(target=_poll, args=(pid, writable), daemon=True).start()
        return readable


def _poll(pid: int, writable: int) -> None:
    while _is_running(pid):
        time.sleep(POLL)
    # Closing is not enough: a forked child may hold this end open. The reader may have closed.
    with contextlib.suppress(BrokenPipeError):
        os.write(writable, b".")
    os.close(writable)


def _is_running(pid: int) -> bool:
    try:
        # A zombie has ended, and waits for its parent to ask how.
        return stat_fields(pid)[0] not in "ZX"
    except OSError:
        return False


def describe_exit(code: int) -> str:
    """Return an exit status in words."""
    names = {number.value: number.name for number in signal.Signals}
    return f"{KILLED} {names.get(-code, -code)}" if code < 0 else f"exit status {code}"
