"""The supervisor: the process between a controller and its ranks, which starts and ends them.

It imports torch once, serves one launch after the other, and runs no code of a candidate. When its
controller ends, it ends every process that belongs to it, removes their folder, and ends as well.
Ranks also notice the end of the controller by their sockets; but not while they are being started,
not if they are stopped, and not for processes that they started.
"""

import contextlib
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from harness.importing import without_a_search_for_garbage
from harness.processes.descendants import (
    ADDRESS,
    adopt_orphans,
    bury_all_below,
    kill_below,
    signal_when_orphaned,
    sweep,
)
from harness.processes.process_exit import exit_handle
from harness.supervision import launch_folder
from harness.wire.messages import Start, Stopped, ToSupervisor, Up
from harness.wire.pipe import Pipe

# Variables of a supervisor: the pid of its controller, and what it imports for its ranks.
CONTROLLER, IMPORTS = "HARNESS_CONTROLLER", "HARNESS_IMPORTS"
# torch's variable for where it keeps compiled code.
COMPILED = "TORCHINDUCTOR_CACHE_DIR"


def _controller_handle() -> int | None:
    """Return a descriptor that is readable once the controller has ended; None if it has."""
    pid = int(os.environ.pop(CONTROLLER))
    try:
        # The pipe is no substitute: a fork of the controller would keep it open.
        handle = exit_handle(pid)
    except ProcessLookupError:
        return None
    # If it ended before the handle was opened, the number may be another process's by now.
    return handle if os.getppid() == pid else None


def _end_with_controller(controller: int | None, address: str) -> None:
    if controller is not None:
        select.select([controller], [], [])
    kill_below([os.getpid()])
    sweep(address)
    folder = Path(address).parent
    # The main thread may be writing files there meanwhile.
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _take_pipe() -> Pipe[ToSupervisor]:
    """Return the pipe that is standard input, and close that: ranks would inherit it."""
    end = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return Pipe(end, ToSupervisor)


@contextlib.contextmanager
def _compiling_into(folder: Path) -> Iterator[None]:
    """While this lasts, a folder for compiled code is made here, where it goes with the ranks.

    torch makes one as soon as it could compile. Ranks that compile choose their own.
    """
    is_chosen = COMPILED in os.environ
    os.environ.setdefault(COMPILED, str(folder / "compiled"))
    yield
    if not is_chosen:
        del os.environ[COMPILED]


def main() -> None:
    controller, address = _controller_handle(), os.environ[ADDRESS]
    # It may be stopped by then, and notices nothing before it goes on.
    signal_when_orphaned(signal.SIGCONT)
    launch_folder.hold(Path(address).parent)
    adopt_orphans()
    pipe = _take_pipe()
    watch = threading.Thread(target=_end_with_controller, args=(controller, address), daemon=True)
    watch.start()
    with without_a_search_for_garbage():
        # Forked ranks need not import these again.
        for module in ("harness.supervision.agent", "harness.rank_program.case_loop"):
            importlib.import_module(module)
        with _compiling_into(Path(address).parent):
            for module in os.environ[IMPORTS].split():
                # If it cannot be imported, a rank will say why.
                with contextlib.suppress(Exception):
                    importlib.import_module(module)
        # A garbage collection in a fork would copy the memory of all these objects.
        gc.freeze()
    try:
        # Sending fails only if the controller has ended.
        with contextlib.suppress(BrokenPipeError):
            pipe.send(Up())
            _serve(pipe)
    finally:
        kill_below([os.getpid()])
    # The thread ends this process.
    watch.join()


def _serve(pipe: Pipe[ToSupervisor]) -> None:
    """Start and end ranks as the controller asks, until it closes its end."""
    from harness.supervision.agent import Agent

    while pipe.inbox or pipe.read():
        # After one read a large message may still be incomplete.
        if pipe.inbox and isinstance(message := pipe.inbox.popleft(), Start):
            Agent(message, pipe).run()
            bury_all_below()
            pipe.send(Stopped())


if __name__ == "__main__":
    main()
