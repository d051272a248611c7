"""One end of what lies between a controller and the supervisor of its ranks."""

import socket
from collections import deque
from typing import Any, Generic, TypeVar

from harness.ranks.frames import Reader, encode
from harness.ranks.messages import Message

CHUNK = 1 << 16
Heard = TypeVar("Heard")


class Pipe(Generic[Heard]):
    """Between two processes of one host and one user."""

    def __init__(self, end: socket.socket, kinds: Any) -> None:
        # What was read and not taken yet.
        self.waiting: deque[Heard] = deque()
        self._socket = end
        self._reader = Reader[Heard](kinds)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        self._socket.sendall(encode(message))

    def read(self) -> bool:
        """Wait for something to be said; false once the other end is closed."""
        try:
            data = self._socket.recv(CHUNK)
        except ConnectionError:
            return False
        self.waiting += self._reader.feed(data)
        return bool(data)

    def close(self) -> None:
        self._socket.close()
