"""The other hosts of a pool: each starts ranks for every launch, and passes on what they say."""

from functools import cache

from msgspec.structs import replace

from harness.ranks.channel import Channel
from harness.ranks.frames import Reader, encode
from harness.ranks.link import Link
from harness.ranks.messages import Bye, End, Left, Message, OfNode, OfRank, Opened, Order, Tell, To
from harness.ranks.world import World


def named(node: int) -> tuple[str, str]:
    """What goes to a node, and what comes from there."""
    return f"to/{node}", f"from/{node}"


@cache
def _met() -> "OtherHosts | None":
    world = World.here()
    return OtherHosts(world) if world else None


def other_hosts_here() -> "OtherHosts | None":
    """The other hosts, if a launcher has started us on several."""
    nodes = _met()
    return nodes if nodes and nodes.count > 1 else None


def dismiss() -> None:
    """No other pool will need them."""
    nodes = other_hosts_here()
    if nodes:
        nodes.close()


class Through:
    """What is written to a rank of another host."""

    def __init__(self, channel: Channel, launch: str, connection: int) -> None:
        self._channel, self._launch, self._connection = channel, launch, connection

    def sendall(self, data: bytes) -> None:
        self._channel.send(encode(To(self._launch, self._connection, data)))

    def close(self) -> None:
        """Its host ends it."""


class OtherHosts:
    """Hosts that are connected; node 0 is our own and not among them."""

    def __init__(self, world: World) -> None:
        self._world = world
        # For as long as anybody needs it.
        self._served = world.serve_store()
        self.count = len(world.hosts(world.connect()))
        self.links: dict[int, Link] = {}
        self._channels: dict[int, Channel] = {}
        # Hosts that are gone, in words.
        self.gone: list[str] = []
        for node in range(1, self.count):
            channel = Channel(world.connect, *named(node))
            self._channels[node] = channel
            self.links[node] = Link(channel.socket, f"node {node}", Reader(OfNode), node=node)
        # What is under way, who has told of it and has yet to, and what is in the files there.
        self._order: Order | None = None
        self.told: set[int] = set()
        self._asked: set[int] = set()
        self._files: dict[str, str] = {}
        # By rank.
        self.ended: dict[int, str] = {}

    def meeting_place(self, launch: str) -> str:
        """Where the ranks of one launch find each other."""
        there = self._world
        return f"{there.address}:{there.port}/{there.place}/{launch}"

    def begin(self, order: Order) -> None:
        """Have all start ranks."""
        self._order = order
        self.told.clear()
        self._files.clear()
        self.ended.clear()
        for node in self.links:
            self._say(node, replace(order, node=node))

    def opened(self, link: Link, message: Opened) -> Link:
        """A process there has connected, who has not said yet which rank it is."""
        assert link.node is not None
        channel = self._channels[link.node]
        through = Through(channel, message.launch, message.connection)
        return Link(through, link.host, Reader(OfRank))

    def take_in(self, link: Link, left: Left) -> str:
        """Keep what a node tells; how its supervisor ended, if it has."""
        assert link.node is not None
        assert self._order
        self._asked.discard(link.node)
        self.told.add(link.node)
        self._files |= left.files
        for name, end in left.ranks.items():
            if name.isdecimal() and int(name) in self._order.ranks_of(link.node):
                self.ended[int(name)] = end
        return f"the supervisor on {link.host} ended, {left.supervisor}" if left.supervisor else ""

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
        self._asked = {node for node in self.links if self._say(node, Tell())}
        return self._asked

    def end(self) -> None:
        """Have all end what they started, and wait for the next order."""
        self._order = None
        for node in self.links:
            self._say(node, End())

    def close(self) -> None:
        """There will be no other order."""
        for node, channel in self._channels.items():
            self._say(node, Bye())
            channel.close()
        self.links.clear()
        self._channels.clear()

    def _say(self, node: int, message: Message) -> bool:
        """Whether the store took it; if not, its end is about to be noticed."""
        try:
            self._channels[node].send(encode(message))
        except OSError:
            return False
        return True
