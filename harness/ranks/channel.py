"""Messages between the controller and a node, through the store of their launcher.

Each side counts what it sent; the other waits for the next one. A side with nothing to say sends a
beat now and then, because a host that is cut off closes no socket.
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

# A host that is silent for so long is gone; each end sends something so often.
SILENCE, BEAT = 60.0, 5.0
# How long a thread waits for a message before it waits again.
TURN = timedelta(seconds=20)
ALIVE = b"alive"


class Channel:
    """One end. Whole frames are read from its socket, in order, until the other end is gone."""

    def __init__(self, connect: "Callable[[], Store]", ours: str, theirs: str) -> None:
        self._heard = time.monotonic()
        self.socket, self._into = socket.socketpair()
        self._ours, self._theirs = ours, theirs
        # Waiting for a message blocks a connection, so there is one more for writing.
        self._writing, self._reading = connect(), connect()
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._sent, self._read = itertools.count(), 0
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._listen, self._beat)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, frame: bytes) -> None:
        """`OSError` where the store is gone."""
        from torch.distributed import DistError

        try:
            with self._lock:
                self._writing.set(f"{self._ours}/{next(self._sent)}", frame)  # type: ignore[arg-type]
        except DistError as error:
            raise ConnectionError(str(error)) from None

    def close(self) -> None:
        """Nothing is said or heard any more."""
        from torch.distributed import DistError

        self._closed.set()
        self.socket.close()
        # It would wait while Python ends, and bring the process down.
        with suppress(DistError), self._lock:
            self._writing.set(f"{self._theirs}/{self._read}", ALIVE)  # type: ignore[arg-type]
        for thread in self._threads:
            thread.join(SILENCE)

    def _listen(self) -> None:
        from torch.distributed import DistError, DistStoreError

        self._reading.set_timeout(TURN)
        with suppress(DistError, OSError), self._into:
            while not self._closed.is_set():
                key = f"{self._theirs}/{self._read}"
                try:
                    data = self._reading.get(key)
                except DistStoreError:
                    # Nothing yet.
                    continue
                self._read += 1
                self._reading.delete_key(key)
                self._heard = time.monotonic()
                if data != ALIVE:
                    self._into.sendall(data)

    def _beat(self) -> None:
        with suppress(OSError):
            while not self._closed.wait(BEAT):
                if time.monotonic() - self._heard > SILENCE:
                    # The reader of our socket sees its end.
                    self._into.shutdown(socket.SHUT_WR)
                    return
                self.send(ALIVE)
