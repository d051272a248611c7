"""The controller's end of one rank's socket, and what can come of it."""

import fcntl
import socket
import struct
import termios
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.ranks.frames import MAX_HELLO, Reader
from harness.ranks.messages import OfRank

C_INT = struct.Struct("i")
# As the kernel has it in /proc/PID/stat.
PF_EXITING = 0x4


def at_hand(connection: socket.socket) -> int:
    """How many bytes it holds: of who has ended, all. Its children may send more, for ever."""
    (there,) = C_INT.unpack(fcntl.ioctl(connection, termios.FIONREAD, bytes(C_INT.size)))
    return int(there)


@dataclass(slots=True)
class Link:
    """One connection; it belongs to no rank or node until that one has said hello."""

    # Its socket, or what leads to that.
    socket: Any
    # Empty for ours: of what runs on another host only that is known which is told from there.
    host: str = ""
    reader: Reader[Any] = field(default_factory=lambda: Reader(OfRank, MAX_HELLO))
    rank: int | None = None
    node: int | None = None
    pid: int = 0
    ready: bool = False
    # What it runs on, in its own words.
    hardware: dict[str, str] = field(default_factory=dict)
    # Whether we still listen.
    heard: bool = True
    # How many reports it owes us.
    asked: int = 0

    def is_ending(self) -> bool:
        """Whether its process is on the way out, though this end of it has not heard so yet."""
        if self.host:
            return False
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        # The name before the bracket may hold anything; six fields on stand the flags.
        return self.heard and bool(int(status.rpartition(")")[2].split()[6]) & PF_EXITING)

    def close(self) -> None:
        self.heard = False
        self.socket.close()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: a message, or what went wrong with a link or with a supervisor."""

    link: Link | None
    message: OfRank | None = None
    broken: str = ""
    # The rank itself is gone, not just beyond understanding.
    died: bool = False
    # Which one, where it never connected.
    silent: int | None = None

    @property
    def rank(self) -> int | None:
        return self.link.rank if self.link else self.silent
