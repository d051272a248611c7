"""Sockets between hosts: made, and watched."""

import socket
import time

# A host that has answered nothing for so long is gone. Without it a socket whose other end lost
# its power would stay open for ever, and so would all that waits for it to close.
SILENCE = 20
ATTEMPT, PAUSE = 5.0, 0.5


def split(endpoint: str) -> tuple[str, int]:
    """HOST:PORT as a host and a port; `ValueError` if it is none."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{endpoint}: use HOST:PORT, for example 10.0.0.1:29400")
    return host, int(port)


def dial(endpoint: str, patience: float = 0.0) -> socket.socket:
    """Connect, as soon as somebody listens there; `OSError` if nobody does within `patience`."""
    until = time.monotonic() + patience
    while True:
        try:
            connection = socket.create_connection(split(endpoint), ATTEMPT)
        except socket.gaierror:
            raise
        except OSError:
            if time.monotonic() + PAUSE > until:
                raise
            time.sleep(PAUSE)
        else:
            connection.settimeout(None)
            watch(connection)
            return connection


def watch(connection: socket.socket) -> None:
    """Have the kernel close this connection once the other host is silent for too long.

    A process there that has no time to read is not silence: its kernel answers.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, SILENCE // 4),
        (socket.TCP_KEEPINTVL, SILENCE // 4),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_NODELAY, 1),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
