"""`join`: the part of a pool on this host, for a controller on another.

The connection lasts as long as the controller does. On it come launches, one after the other; what
was launched ends when the controller says so, and at the latest when the connection closes.
"""

import contextlib
import select
import time

from harness.outside import BadInput
from harness.ranks.dial import dial
from harness.ranks.handshake import Guest, launch_token
from harness.ranks.host import Host, Order, ending
from harness.ranks.wire import Frame, ProtocolError, encode

# How long the controller may take until it listens and has shown who it is.
PATIENCE = 180.0
CHUNK = 1 << 16


class Refused(BadInput):
    """There is no controller, or it does not want us, or it is none of ours."""


class Node:
    """This host's end of the connection."""

    def __init__(self, endpoint: str, token: str) -> None:
        self._endpoint, self._token = endpoint, token
        self._guest = Guest(token, "join")
        self._until = time.monotonic() + PATIENCE
        self._launch = ""
        self._host: Host | None = None
        try:
            self._socket = dial(endpoint, PATIENCE)
        except ValueError as error:
            raise Refused(str(error)) from None
        except OSError as error:
            raise Refused(f"{endpoint}: cannot be reached: {error.strerror or error}") from None

    def serve(self) -> bool:
        """Do as the controller says until it is done; false if it is gone before."""
        try:
            while True:
                data = self._hear()
                if not data and self._guest.welcome:
                    return False
                if not data:
                    raise Refused(
                        f"{self._endpoint}: refused this host: the token differs, or all hosts "
                        "have joined"
                    )
                for frame in self._guest.reader.feed(data):
                    if not self._guest.welcome:
                        # If it is not taken, we are about to hear the end of the connection.
                        with contextlib.suppress(OSError):
                            self._socket.sendall(self._guest.answer(frame))
                    elif frame.kind == "bye":
                        return True
                    else:
                        self._obey(frame)
        except ProtocolError as error:
            raise Refused(f"{self._endpoint}: is not a harness controller: {error}") from None
        finally:
            self._end()
            self._socket.close()

    def _hear(self) -> bytes:
        """What the controller says next; nothing once it is gone."""
        while True:
            supervisor = self._host.supervisor if self._host else None
            running = supervisor if supervisor and supervisor.process.returncode is None else None
            end = self._socket.fileno()
            watched = [end, *([running.pipe.fileno(), running.handle] if running else [])]
            left = None if self._guest.welcome else max(0.0, self._until - time.monotonic())
            ready, _, _ = select.select(watched, [], [], left)
            if not ready:
                raise Refused(f"{self._endpoint}: gave no answer within {PATIENCE:g} s")
            if running and self._host and running.pipe.fileno() in ready and self._host.hear():
                self._tell()
            if running and running.handle in ready:
                running.process.wait()
                self._tell()
            if end in ready:
                try:
                    return self._socket.recv(CHUNK)
                except OSError:
                    return b""

    def _obey(self, frame: Frame) -> None:
        if frame.kind == "launch":
            self._end()
            order = Order.read(frame, launch_token(self._token, frame.text("name")))
            self._launch = order.name
            self._host = Host(order, endpoint=self._endpoint)
            self._host.start()
        elif frame.kind == "end":
            self._end()
        elif frame.kind == "tell":
            self._tell()

    def _tell(self) -> None:
        """All that can be known on this host only."""
        if self._host:
            status = self._host.supervisor.process.returncode
            frame = encode(
                "left",
                launch=self._launch,
                ended="" if status is None else ending(status),
                files=self._host.left(),
                ranks={str(rank): how for rank, how in self._host.ended.items()},
            )
            # If it is not taken, we are about to hear the end of the connection.
            with contextlib.suppress(OSError):
                self._socket.sendall(frame)

    def _end(self) -> None:
        host, self._host = self._host, None
        if host:
            host.kill()
