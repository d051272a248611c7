"""A rank's end of the socket to its controller; the controller's end is a `Link`.

A separate thread reads the socket. It answers probes while the main thread hangs in a collective,
and ends the process as soon as the socket closes.
"""

import os
import queue
import shutil
import signal
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from harness.processes.descendants import ADDRESS, kill_below
from harness.rank_program.threads import format_stacks, module_being_imported, thread_frames
from harness.wire.frames import Reader, encode
from harness.wire.messages import Activity, Hello, Mesh, Message, Probe, Run, ToRank

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.watch.collectives import Collective

# The variable that holds the name of the launch.
LAUNCH = "HARNESS_LAUNCH"


class Controller:
    """The connection of this rank to its controller."""

    def __init__(self, rank: int) -> None:
        self.folder = Path(os.environ[ADDRESS]).parent
        self.inbox: queue.SimpleQueue[Mesh | Run] = queue.SimpleQueue()
        # Replaced once torch.distributed is initialised; there are no collectives before.
        self.read_collectives: Callable[[], list[Collective]] = list
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(os.environ[ADDRESS])
            self.send(Hello(os.environ.pop(LAUNCH), rank, os.getpid()))
        except OSError:
            self.leave()
        threading.Thread(target=self._read, name="controller", daemon=True).start()

    def send(self, message: Message) -> None:
        """Send a message; safe from several threads."""
        frame = encode(message)
        with self._lock:
            self._socket.sendall(frame)

    def _read(self) -> None:
        reader = Reader[ToRank](ToRank)
        try:
            while data := self._socket.recv(1 << 20):
                for message in reader.feed(data):
                    if isinstance(message, Probe):
                        self.send(self.activity())
                    else:
                        self.inbox.put(message)
        finally:
            self.leave()

    def activity(self) -> Activity:
        """Return what every thread but this one is doing."""
        frames = thread_frames()
        stack = format_stacks(frames)
        collectives: list[Collective] = []
        try:
            collectives = self.read_collectives()
        except Exception as error:  # noqa: BLE001 - the stack is worth having without the log
            stack.append(f"no log of collectives: {type(error).__name__}: {error}")
        return Activity(
            stack="".join(stack),
            importing=next(filter(None, map(module_being_imported, frames.values())), ""),
            collectives=collectives,
        )

    def leave(self) -> NoReturn:
        """End this process and its descendants and remove the folder: the controller has ended."""
        shutil.rmtree(self.folder, ignore_errors=True)
        kill_below([os.getpid()])
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)
