"""The process between a controller and its ranks: it starts them, knows each, and ends them.

It imports torch once and serves one launch after the other. It runs nothing of a candidate. When
its controller is gone it goes too, with all that it started: ranks notice that by their sockets,
which helps neither while they are still being started nor against a rank that is stopped or has
started processes of its own. And somebody has to remove the folder after the last of them.
"""

import contextlib
import gc
import importlib
import os
import select
import shutil
import socket
import threading
from pathlib import Path

from harness.importing import without_a_search_for_garbage
from harness.ranks import launch_folder
from harness.ranks.descendants import (
    ADDRESS,
    adopt_orphans,
    bury_all_below,
    kill_below,
    sweep,
    wake_when_orphaned,
)
from harness.ranks.messages import Start, Stopped, ToSupervisor, Up
from harness.ranks.pipe import Pipe
from harness.ranks.process_exit import exit_handle

CONTROLLER = "HARNESS_CONTROLLER"


def _controller() -> int | None:
    """What becomes readable when the process that started us is gone; nothing if it is."""
    pid = int(os.environ.pop(CONTROLLER))
    try:
        # Not a pipe: a fork of the controller would keep it open.
        handle = exit_handle(pid)
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
    # The main thread may be putting files there at this moment.
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _pipe() -> Pipe[ToSupervisor]:
    """Ours alone: what is started here would read from it."""
    end = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return Pipe(end, ToSupervisor)


def main() -> None:
    controller, address = _controller(), os.environ[ADDRESS]
    wake_when_orphaned()
    launch_folder.hold(Path(address).parent)
    adopt_orphans()
    pipe = _pipe()
    watch = threading.Thread(target=_watch, args=(controller, address), daemon=True)
    watch.start()
    with without_a_search_for_garbage():
        # What is imported here, ranks that are forked need not import.
        for module in ("harness.ranks.agent", "harness.ranks.case_loop"):
            importlib.import_module(module)
        # Ranks are forked from here. A search would copy the memory that all these objects lie in.
        gc.freeze()
    try:
        # A controller that does not take it is about to be gone.
        with contextlib.suppress(BrokenPipeError):
            pipe.send(Up())
            _serve(pipe)
    finally:
        kill_below([os.getpid()])
    # It ends this process.
    watch.join()


def _serve(pipe: Pipe[ToSupervisor]) -> None:
    """Until the controller closes its end."""
    from harness.ranks.agent import Agent

    while pipe.waiting or pipe.read():
        # An order for many ranks comes in several pieces.
        if pipe.waiting and isinstance(message := pipe.waiting.popleft(), Start):
            Agent(message, pipe).run()
            bury_all_below()
            pipe.send(Stopped())


if __name__ == "__main__":
    main()
