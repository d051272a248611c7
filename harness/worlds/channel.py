"""Messages between the controller and another host, through the store of their launcher.

Each end numbers its messages, and waits for the next number of the other. An end without anything
to send repeats a sign of life, because a host that is cut off closes no socket.
"""

import itertools
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import Store  # type: ignore[attr-defined]

# Seconds without a message after which the other host counts as lost, and between signs of life.
SILENCE, BEAT = 60.0, 5.0
# How long a thread waits for a message before it waits again.
TURN = timedelta(seconds=20)
ALIVE = b"alive"


def channel_keys(node: int) -> tuple[str, str]:
    """Return the store keys of messages to a node, and of messages from it."""
    return f"to/{node}", f"from/{node}"


class Channel:
    """One end. Its `socket` yields whole frames in order, and ends when the other end is lost."""

    def __init__(self, connect: "Callable[[], Store]", outgoing: str, incoming: str) -> None:
        self._last_received = time.monotonic()
        self.socket, self._socket_input = socket.socketpair()
        self._outgoing, self._incoming = outgoing, incoming
        # Waiting for a message blocks a connection, so there is a second one for writing.
        self._writing, self._reading = connect(), connect()
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._numbers, self._received = itertools.count(), 0
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._receive, self._beat)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, frame: bytes) -> None:
        """Send a frame; raise `OSError` if the store has ended."""
        from torch.distributed import DistError

        try:
            with self._lock:
                self._writing.set(f"{self._outgoing}/{next(self._numbers)}", frame)  # type: ignore[arg-type]
        except DistError as error:
            raise ConnectionError(str(error)) from None

    def close(self) -> None:
        """Stop sending and receiving."""
        from torch.distributed import DistError

        self._closed.set()
        self.socket.close()
        # Wake the receiving thread: a thread that waits while Python exits crashes the process.
        with suppress(DistError), self._lock:
            self._writing.set(f"{self._incoming}/{self._received}", ALIVE)  # type: ignore[arg-type]
        for thread in self._threads:
            thread.join(SILENCE)

    def _receive(self) -> None:
        from torch.distributed import DistError, DistStoreError

        self._reading.set_timeout(TURN)
        with suppress(DistError, OSError), self._socket_input:
            while not self._closed.is_set():
                key = f"{self._incoming}/{self._received}"
                try:
                    data = self._reading.get(key)
                except DistStoreError:
                    # No message came within the timeout.
                    continue
                self._received += 1
                self._reading.delete_key(key)
                self._last_received = time.monotonic()
                if data != ALIVE:
                    self._socket_input.sendall(data)

    def _beat(self) -> None:
        with suppress(OSError):
            while not self._closed.wait(BEAT):
                if time.monotonic() - self._last_received > SILENCE:
                    # The reader of `socket` now sees its end.
                    self._socket_input.shutdown(socket.SHUT_WR)
                    return
                self.send(ALIVE)
