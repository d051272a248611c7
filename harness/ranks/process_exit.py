"""When a process of ours ends, as something that can be waited for like a socket."""

import contextlib
import os
import threading
import time
from pathlib import Path

POLL = 0.05


def exit_handle(pid: int) -> int:
    """A descriptor that becomes readable once the process has ended; `ProcessLookupError` if there
    is none.

    Some kernels, as those of sandboxes, have no handles for processes, and some builds of Python
    do not ask for them: then somebody looks.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        os.kill(pid, 0)
        end, told = os.pipe()
        threading.Thread(target=_look, args=(pid, told), daemon=True).start()
        return end


def _look(pid: int, told: int) -> None:
    while _is_running(pid):
        time.sleep(POLL)
    # A word, and not just an end: a fork of ours may hold this one open. Perhaps nobody listens.
    with contextlib.suppress(BrokenPipeError):
        os.write(told, b".")
    os.close(told)


def _is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # Behind the name, which may hold anything. A zombie has ended, and waits to be asked how.
    return status.rpartition(")")[2].split()[0] not in "ZX"
