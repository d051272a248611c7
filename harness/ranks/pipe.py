"""What a controller and the supervisor of its ranks say to each other, one class a message.

A line of JSON each. Only the standard library: a supervisor says that it cannot import torch.
"""

import json
import socket
from collections import deque
from dataclasses import asdict, dataclass

CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Start:
    """To a supervisor: start these ranks. Each is told what is in its environment."""

    environments: list[dict[str, str]]
    # Where each begins.
    folder: str
    # Whether the supervisor forks them: not where they have drivers of devices to start.
    forks: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """To a supervisor: end them, and all that they started."""


@dataclass(frozen=True, slots=True)
class Up:
    """From a supervisor: it has imported what it needs."""


@dataclass(frozen=True, slots=True)
class Ended:
    """From a supervisor: the process of a rank of this host has ended, and how."""

    local: int
    code: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """From a supervisor: nothing is left of them."""


Message = Start | Stop | Up | Ended | Stopped
KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Start, Stop, Up, Ended, Stopped)
}


class Pipe:
    """One end, between two processes of one host and one user."""

    def __init__(self, end: socket.socket) -> None:
        # What was read and not taken yet.
        self.waiting: deque[Message] = deque()
        self._socket = end
        self._begun = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        said = {"kind": type(message).__name__, **asdict(message)}
        self._socket.sendall(json.dumps(said).encode() + b"\n")

    def read(self) -> bool:
        """Wait for something to be said; false once the other end is closed."""
        try:
            data = self._socket.recv(CHUNK)
        except ConnectionError:
            return False
        *lines, self._begun = (self._begun + data).split(b"\n")
        for said in map(json.loads, lines):
            self.waiting.append(KINDS[said.pop("kind")](**said))
        return bool(data)

    def close(self) -> None:
        self._socket.close()
