"""The controller's end of one rank's socket, and the events that come from it."""

import fcntl
import socket
import struct
import termios
from dataclasses import dataclass, field
from typing import Any

from harness.processes.descendants import stat_fields
from harness.wire.frames import MAX_HELLO, Reader
from harness.wire.messages import FromRank

# How many bytes are read at once.
CHUNK = 1 << 20
C_INT = struct.Struct("i")
# A process flag of the kernel, and its place in /proc/PID/stat.
PF_EXITING, FLAGS = 0x4, 6


def bytes_at_hand(connection: socket.socket) -> int:
    """Return how many bytes can be read at once.

    They include all bytes of a rank that has ended. Its children may send more, without an end.
    """
    (count,) = C_INT.unpack(fcntl.ioctl(connection, termios.FIONREAD, bytes(C_INT.size)))
    return int(count)


@dataclass(slots=True)
class Link:
    """One connection. It has no rank before its process has sent `Hello`; a node's has none."""

    # A socket, or a `RelayedSocket` to a rank of another host.
    socket: Any
    # Empty for this host. A process on another host is known only by the reports of that host.
    host: str = ""
    reader: Reader[Any] = field(default_factory=lambda: Reader(FromRank, MAX_HELLO))
    # The ranks that its host has, of which its process may be one.
    ranks: range = range(0)
    rank: int | None = None
    node: int | None = None
    pid: int = 0
    is_ready: bool = False
    # The rank's description of what it runs on.
    hardware: dict[str, str] = field(default_factory=dict)
    # Whether the controller still reads from it.
    is_heard: bool = True
    # Probes that the rank has not answered yet.
    probes: int = 0

    def is_ending(self) -> bool:
        """Whether its process is exiting, before the socket shows that."""
        if self.host:
            return False
        try:
            return self.is_heard and bool(int(stat_fields(self.pid)[FLAGS]) & PF_EXITING)
        except OSError:
            return False

    def close(self) -> None:
        self.is_heard = False
        self.socket.close()


@dataclass(frozen=True, slots=True)
class Event:
    """A message from a rank, or a problem with a link, a host or a supervisor."""

    link: Link | None
    message: FromRank | None = None
    problem: str = ""
    # Whether the process of the rank has ended, and not just sent what cannot be understood.
    has_died: bool = False
    # The rank, if it died before it connected.
    unconnected: int | None = None

    @property
    def rank(self) -> int | None:
        return self.link.rank if self.link else self.unconnected
