"""A rank's end of the socket to its controller; the other end is a `Link`.

A thread of its own reads it: it answers questions while the main thread is stuck in a collective,
and when the socket closes the process ends at once, whatever it was doing.
"""

import os
import queue
import shutil
import signal
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from harness.ranks.descendants import ADDRESS, kill_below
from harness.ranks.frames import Reader, encode
from harness.ranks.messages import Doing, Hello, Mesh, Message, Probe, Run, ToRank
from harness.ranks.threads import being_imported, frames_of_threads, stacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.watch.collectives import Collective

# Which launch this rank is of.
LAUNCH = "HARNESS_LAUNCH"


class Controller:
    """This rank's end of the socket."""

    def __init__(self, rank: int) -> None:
        self.folder = Path(os.environ[ADDRESS]).parent
        self.inbox: queue.SimpleQueue[Mesh | Run] = queue.SimpleQueue()
        # Nothing to ask before torch.distributed is up.
        self.collectives: Callable[[], list[Collective]] = list
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(os.environ[ADDRESS])
            self.send(Hello(os.environ.pop(LAUNCH), rank, os.getpid()))
        except OSError:
            self.leave()
        threading.Thread(target=self._read, name="controller", daemon=True).start()

    def send(self, message: Message) -> None:
        """Send a message; several threads do."""
        frame = encode(message)
        with self._lock:
            self._socket.sendall(frame)

    def _read(self) -> None:
        reader = Reader[ToRank](ToRank)
        try:
            while data := self._socket.recv(1 << 20):
                for message in reader.feed(data):
                    if isinstance(message, Probe):
                        self.send(self.doing())
                    else:
                        self.inbox.put(message)
        finally:
            self.leave()

    def doing(self) -> Doing:
        """What every thread is doing, for a controller that has lost patience."""
        frames = frames_of_threads()
        stack = stacks(frames)
        logged: list[Collective] = []
        try:
            logged = self.collectives()
        except Exception as error:  # noqa: BLE001 - the stack is worth having without the log
            stack.append(f"no log of collectives: {type(error).__name__}: {error}")
        return Doing(
            stack="".join(stack),
            importing=next(filter(None, map(being_imported, frames.values())), ""),
            collectives=logged,
        )

    def leave(self) -> NoReturn:
        """The controller is gone. Nothing may outlive it: no file, and no child of ours."""
        shutil.rmtree(self.folder, ignore_errors=True)
        kill_below([os.getpid()])
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)
