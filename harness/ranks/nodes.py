"""The other hosts of a pool: each starts ranks for every launch, and passes on what they say."""

from functools import cache

from harness.ranks.channel import Channel
from harness.ranks.host import Order
from harness.ranks.launched import Launched
from harness.ranks.link import Link
from harness.ranks.wire import MAX_FRAME, Frame, FrameReader, ProtocolError, encode


def named(node: int) -> tuple[str, str]:
    """What goes to a node, and what comes from there."""
    return f"to/{node}", f"from/{node}"


@cache
def _met() -> "Nodes | None":
    launched = Launched.here()
    return Nodes(launched) if launched else None


def nodes_here() -> "Nodes | None":
    """The other hosts, if a launcher has started us on several."""
    nodes = _met()
    return nodes if nodes and nodes.count > 1 else None


def dismiss() -> None:
    """No other pool will need them."""
    nodes = nodes_here()
    if nodes:
        nodes.close()


class Through:
    """What is written to a rank of another host."""

    def __init__(self, channel: Channel, launch: str, connection: int) -> None:
        self._channel, self._said = channel, {"launch": launch, "connection": connection}

    def sendall(self, data: bytes) -> None:
        self._channel.send(encode("to", data, **self._said))

    def close(self) -> None:
        """Its host ends it."""


class Nodes:
    """Those that are here; node 0 is our own host and none of them."""

    def __init__(self, launched: Launched) -> None:
        self._launched = launched
        # For as long as anybody needs it.
        self._served = launched.serve_store()
        self.count = len(launched.hosts(launched.connect()))
        self.links: dict[int, Link] = {}
        self._channels: dict[int, Channel] = {}
        # Those that are gone, in words.
        self.gone: list[str] = []
        for node in range(1, self.count):
            channel = Channel(launched.connect, *named(node))
            reader = FrameReader(limit=MAX_FRAME)
            self._channels[node] = channel
            self.links[node] = Link(channel.socket, f"node {node}", reader, node=node)
        # What is under way, who has told of it and has yet to, and what is in the files there.
        self._order: Order | None = None
        self.told: set[int] = set()
        self._asked: set[int] = set()
        self._files: dict[str, str] = {}
        # By rank.
        self.ended: dict[int, str] = {}

    @property
    def silent(self) -> list[Link]:
        """Those who have said nothing for too long."""
        return [link for node, link in self.links.items() if self._channels[node].is_silent]

    def meeting_place(self, launch: str) -> str:
        """Where the ranks of one launch find each other."""
        there = self._launched
        return f"{there.address}:{there.port}/{there.place}/{launch}"

    def begin(self, order: Order) -> None:
        """Have all start ranks."""
        self._order = order
        self.told.clear()
        self._files.clear()
        self.ended.clear()
        for node in self.links:
            self._say(node, encode("launch", **order.told(node)))

    def opened(self, link: Link, frame: Frame) -> Link:
        """A process there has connected, who has not said yet which rank it is."""
        assert link.node is not None
        channel = self._channels[link.node]
        through = Through(channel, frame.text("launch"), frame.whole("connection"))
        return Link(through, link.host)

    def take_in(self, link: Link, frame: Frame) -> str:
        """Keep what a node tells; how its supervisor ended, if it has."""
        assert link.node is not None
        assert self._order
        if frame.kind != "left":
            raise ProtocolError(f"a frame of kind {frame.kind!r} was not asked for")
        self._asked.discard(link.node)
        self.told.add(link.node)
        self._files |= frame.texts("files")
        for name, end in frame.texts("ranks").items():
            if name.isdecimal() and int(name) in self._order.ranks_of(link.node):
                self.ended[int(name)] = end
        how = frame.text("ended")
        return f"the supervisor on {link.host} ended, {how}" if how else ""

    def forget(self, node: int) -> None:
        """It is gone, and its launcher will not bring it back to us."""
        self.gone.append(f"{self.links.pop(node).host} is gone")
        self._channels.pop(node).close()
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
        for node, channel in self._channels.items():
            self._say(node, encode("bye"))
            channel.close()
        self.links.clear()
        self._channels.clear()

    def _say(self, node: int, frame: bytes) -> bool:
        """Whether the store took it; if not, its end is about to be noticed."""
        try:
            self._channels[node].send(frame)
        except OSError:
            return False
        return True
