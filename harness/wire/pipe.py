"""One end of the sockets between a controller and the supervisor of its ranks."""

import socket
from collections import deque
from typing import Any, Generic

from harness.wire.frames import Reader, Received, encode
from harness.wire.messages import Message

CHUNK = 1 << 16


class Pipe(Generic[Received]):
    """Messages between two processes of one host and one user."""

    def __init__(self, end: socket.socket, kinds: Any) -> None:
        # Messages that were read and not handled yet.
        self.inbox: deque[Received] = deque()
        self._socket = end
        self._reader = Reader[Received](kinds)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        self._socket.sendall(encode(message))

    def read(self) -> bool:
        """Wait for bytes and put complete messages into `inbox`; false if the peer has closed."""
        try:
            data = self._socket.recv(CHUNK)
        except ConnectionError:
            return False
        self.inbox += self._reader.feed(data)
        return bool(data)

    def close(self) -> None:
        self._socket.close()
