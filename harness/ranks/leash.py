"""torchrun on a leash: when its controller is gone, it goes too, with all that it started.

Ranks notice the end of their controller by their sockets and leave by themselves. That does not
help while torchrun is still starting them, nor against a rank that is stopped or that has started
processes of its own; and somebody has to remove the folder after the last of them.
"""

import contextlib
import ctypes
import gc
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from harness.importing import without_a_search_for_garbage
from harness.ranks import place
from harness.ranks.endings import ending_of

ADDRESS, CONTROLLER = "HARNESS_SOCKET", "HARNESS_CONTROLLER"

# As the kernel's header has it.
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# A process that survives SIGKILL for longer is stuck in the kernel: nothing else will help.
PATIENCE = 2.0


def sweep(address: str) -> None:
    """Kill whatever carries this launch's address in its environment, wherever it has got to."""
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


def adopt_orphans() -> None:
    """Whatever loses its parent below this process becomes a child of it, and can be found."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


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


def controller() -> int | None:
    """What becomes readable when the process that started us is gone; nothing if it is."""
    pid = int(os.environ.pop(CONTROLLER))
    try:
        # Not a pipe: a fork of the controller would keep it open.
        handle = ending_of(pid)
    except ProcessLookupError:
        return None
    # If it ended before we looked, the number may be somebody else's by now.
    return handle if os.getppid() == pid else None


def _watch(controller: int | None, address: str) -> None:
    if controller is not None:
        select.select([controller], [], [])
    kill_below([os.getpid()])
    sweep(address)
    folder = Path(address).parent
    # torchrun's own thread may be putting files there at this moment.
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _tell(pid: int, what: str) -> None:
    print(f"process {pid} {what}", file=sys.stderr, flush=True)  # noqa: T201 - the controller reads it


def _tell_of_the_dead() -> None:
    """How each rank ended, in order. torchrun says it of one, and not before the last is gone."""
    told: set[int] = set()
    while True:
        with contextlib.suppress(ChildProcessError):
            # It stays, for torchrun to wait for. What ranks have left comes after them.
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            if ended and ended.si_pid not in told:
                told.add(ended.si_pid)
                code = ended.si_status * (1 if ended.si_code == os.CLD_EXITED else -1)
                _tell(ended.si_pid, f"ended with {code}")
        time.sleep(0.01)


def _tell_what_is_waited_for() -> None:
    """The same, when torchrun waits for them: on a busy machine that may come first."""
    wait, here = os.waitpid, os.getpid()

    def waitpid(pid: int, options: int) -> tuple[int, int]:
        ended, status = wait(pid, options)
        # Not of what a rank that was forked from here waits for.
        if ended and os.getpid() == here:
            _tell(ended, f"ended with {os.waitstatus_to_exitcode(status)}")
        return ended, status

    os.waitpid = waitpid


def _tell_who_begins() -> None:
    """Which process is which rank: torchrun forks them in their order."""
    fork, here = os.fork, os.getpid()

    def told() -> int:
        pid = fork()
        if pid and os.getpid() == here:
            _tell(pid, "began")
        return pid

    os.fork = told


def hold(controller: int | None) -> None:
    """Be torchrun until then."""
    address = os.environ[ADDRESS]
    # Somebody may have stopped us by the time that the controller is gone.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
    place.hold(Path(address).parent)
    adopt_orphans()
    # Before anything is imported that keeps the old one.
    _tell_what_is_waited_for()
    _tell_who_begins()
    threading.Thread(target=_tell_of_the_dead, daemon=True).start()
    threading.Thread(target=_watch, args=(controller, address), daemon=True).start()
    try:
        torchrun()
    finally:
        kill_below([os.getpid()])


def torchrun(words: Sequence[str] | None = None) -> None:
    """Be torchrun, by these words or by those of the command line."""
    # Its events name this host in full, for nobody; where no name server answers, for minutes.
    socket.getfqdn = lambda name="": name or socket.gethostname()
    with without_a_search_for_garbage():
        from torch.distributed.run import main as run

        # Ranks are forked with it. A search would copy the memory that all these objects lie in.
        gc.freeze()
    run(words)


if __name__ == "__main__":
    hold(controller())
