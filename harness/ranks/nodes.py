"""The other hosts of a pool: they join once, and start ranks for each of its launches."""

import os
import secrets
import socket

from harness.ranks.dial import split, watch
from harness.ranks.handshake import launch_token
from harness.ranks.host import Order
from harness.ranks.link import Link
from harness.ranks.wire import Frame, ProtocolError, encode
from harness.ranks.worker import TOKEN

# The ends of all files of a host, and room to spare.
MAX_LEFT = 1 << 24


class CannotListen(ValueError):
    """No other host could reach us there."""


class Nodes:
    """Where they knock, and who is here; node 0 is our own host and none of them."""

    def __init__(self, count: int, endpoint: str) -> None:
        self.count, self.endpoint = count, endpoint
        self.links: dict[int, Link] = {}
        self._chosen = os.environ.get(TOKEN, "")
        self._token = self._chosen or secrets.token_hex(16)
        # What is under way, who has told of it and has yet to, and what is in the files there.
        self._order: Order | None = None
        self.told: set[int] = set()
        self._asked: set[int] = set()
        self._files: dict[str, str] = {}
        # By rank.
        self.ended: dict[int, str] = {}
        try:
            self._host, port = split(endpoint)
            self.listener = socket.create_server((self._host, port))
        except ValueError as error:
            raise CannotListen(str(error)) from None
        except OSError as error:
            raise CannotListen(f"{endpoint}: cannot listen there: {error.strerror}") from None

    @property
    def command(self) -> str:
        """What every other host has to run; a token that the user chose is not shown."""
        token = f"${TOKEN}" if self._chosen else self._token
        return f"{TOKEN}={token} python -m harness join {self.endpoint}"

    @property
    def missing(self) -> int:
        return self.count - 1 - len(self.links)

    def accept(self) -> Link:
        """Somebody who has not said yet who it is."""
        connection, (host, *_) = self.listener.accept()
        watch(connection)
        return Link(connection, host)

    def admit(self, link: Link, frame: Frame) -> None:
        """Take a host in that knows the token, and show that we know it as well."""
        welcome = link.challenge.welcome(self._token, frame)
        free = set(range(1, self.count)) - self.links.keys()
        if not free:
            raise ProtocolError(f"all {self.count} nodes are here already")
        link.node = min(free)
        link.reader.limit = MAX_LEFT
        self.links[link.node] = link
        self._say(link.node, welcome)
        self._begin(link.node)

    def token_of(self, launch: str) -> str:
        """What the ranks of one launch know."""
        return launch_token(self._token, launch)

    def meeting_place(self) -> str:
        """A free port of our host, for the ranks of one launch."""
        with socket.create_server((self._host, 0)) as free:
            return f"{self._host}:{free.getsockname()[1]}"

    def begin(self, order: Order) -> None:
        """Have those who are here start ranks, and those who come later as well."""
        self._order = order
        self.told.clear()
        self._files.clear()
        self.ended.clear()
        for node in self.links:
            self._begin(node)

    def _begin(self, node: int) -> None:
        if self._order:
            self._say(node, encode("launch", **self._order.told(node)))

    def take_in(self, link: Link, frame: Frame) -> str:
        """Keep what a node tells; how its supervisor ended, if it has."""
        assert link.node is not None
        if frame.kind != "left":
            raise ProtocolError(f"a frame of kind {frame.kind!r} was not asked for")
        if not self._order or frame.text("launch") != self._order.name:
            # What became of one before.
            return ""
        self._asked.discard(link.node)
        self.told.add(link.node)
        self._files |= frame.texts("files")
        for name, end in frame.texts("ranks").items():
            if name.isdecimal() and int(name) in self._order.ranks_of(link.node):
                self.ended[int(name)] = end
        how = frame.text("ended")
        return f"the supervisor on node {link.node} ({link.host}) ended, {how}" if how else ""

    def forget(self, node: int) -> None:
        """It is gone; another may join in its place."""
        del self.links[node]
        self._asked.discard(node)

    def read(self, name: str) -> str:
        """What a process on another host left in a file, as far as it was told."""
        return self._files.get(name, "")

    def ask(self) -> set[int]:
        """Have all tell what is in their files; of those returned, who has yet to tell is left."""
        self._asked = {node for node in self.links if self._say(node, encode("tell"))}
        return self._asked

    def end(self) -> None:
        """Have all end what they started, and wait for the next order."""
        self._order = None
        for node in self.links:
            self._say(node, encode("end"))

    def close(self) -> None:
        """There will be no other order."""
        for node in self.links:
            self._say(node, encode("bye"))
            self.links[node].close()
        self.links.clear()
        self.listener.close()

    def _say(self, node: int, frame: bytes) -> bool:
        """Whether the node's socket took it; if not, its end is about to be noticed."""
        try:
            self.links[node].socket.sendall(frame)
        except OSError:
            return False
        return True
