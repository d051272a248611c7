"""The controller's end of the other hosts of a pool, which start ranks and pass on their bytes."""

from functools import cache

from msgspec.structs import replace

from harness.wire.frames import Reader, encode
from harness.wire.link import Link
from harness.wire.messages import (
    BytesToRank,
    Connected,
    Dismiss,
    EndLaunch,
    FromNode,
    FromRank,
    HostReport,
    Message,
    Order,
    ReportRequest,
)
from harness.worlds.channel import Channel, channel_keys
from harness.worlds.world import World


@cache
def _connected() -> "OtherHosts | None":
    world = World.here()
    return OtherHosts(world) if world else None


def connect_other_hosts() -> "OtherHosts | None":
    """Return the other hosts, connected; None unless a launcher started us on several hosts."""
    nodes = _connected()
    return nodes if nodes and nodes.count > 1 else None


def release_hosts() -> None:
    """Let the other hosts go: no pool of this process will need them again."""
    nodes = connect_other_hosts()
    if nodes:
        nodes.close()


class RelayedSocket:
    """Writes to one connection on another host, in place of a socket."""

    def __init__(self, channel: Channel, launch: str, connection: int) -> None:
        self._channel, self._launch, self._connection = channel, launch, connection

    def sendall(self, data: bytes) -> None:
        self._channel.send(encode(BytesToRank(self._launch, self._connection, data)))

    def close(self) -> None:
        """Do nothing: the other host closes the connection."""


class OtherHosts:
    """All hosts of a world but node 0, which is the controller's own."""

    def __init__(self, world: World) -> None:
        self._world = world
        # Held because the store ends with this object.
        self._store = world.serve_store()
        self.count = len(world.hosts(world.connect()))
        self.links: dict[int, Link] = {}
        self._channels: dict[int, Channel] = {}
        # One phrase for each host that is lost.
        self.losses: list[str] = []
        for node in range(1, self.count):
            channel = Channel(world.connect, *channel_keys(node))
            self._channels[node] = channel
            self.links[node] = Link(channel.socket, f"node {node}", Reader(FromNode), node=node)
        self._order: Order | None = None
        # Nodes that have sent a report during this order, and those that owe one.
        self.reported: set[int] = set()
        self._pending: set[int] = set()
        # From the reports: the ends of files by name, and how ranks ended by rank.
        self._files: dict[str, str] = {}
        self.ended: dict[int, str] = {}

    def rendezvous(self, launch: str) -> str:
        """Return the store address at which the ranks of a launch meet."""
        world = self._world
        return f"{world.address}:{world.port}/{world.store_prefix}/{launch}"

    def begin(self, order: Order) -> None:
        """Have every node start its ranks."""
        self._order = order
        self.reported.clear()
        self._files.clear()
        self.ended.clear()
        for node in self.links:
            self._send(node, replace(order, node=node))

    def open_link(self, link: Link, message: Connected) -> Link:
        """Return the link of a process that has connected on the node of `link`."""
        assert link.node is not None
        assert self._order
        relayed = RelayedSocket(self._channels[link.node], message.launch, message.connection)
        return Link(relayed, link.host, Reader(FromRank), self._order.ranks_of(link.node))

    def add_report(self, link: Link, report: HostReport) -> str:
        """Keep a node's report; return how its supervisor ended, or ""."""
        assert link.node is not None
        assert self._order
        self._pending.discard(link.node)
        self.reported.add(link.node)
        self._files |= report.files
        for name, end in report.ranks.items():
            if name.isdecimal() and int(name) in self._order.ranks_of(link.node):
                self.ended[int(name)] = end
        how = report.supervisor
        return f"the supervisor on {link.host} ended, {how}" if how else ""

    def forget(self, node: int) -> None:
        """Drop a lost node for good: its launcher will not bring it back to this controller."""
        self.losses.append(f"{self.links.pop(node).host} is gone")
        self._channels.pop(node).close()
        self._pending.discard(node)

    def read(self, name: str) -> str:
        """Return the end of a file of another host, as far as it was reported."""
        return self._files.get(name, "")

    def request_reports(self) -> set[int]:
        """Ask every node for a report; return the nodes that owe one, a set that shrinks."""
        self._pending = {node for node in self.links if self._send(node, ReportRequest())}
        return self._pending

    def end(self) -> None:
        """Have every node end its ranks and wait for the next order."""
        self._order = None
        for node in self.links:
            self._send(node, EndLaunch())

    def close(self) -> None:
        """Dismiss every node."""
        for node, channel in self._channels.items():
            self._send(node, Dismiss())
            channel.close()
        self.links.clear()
        self._channels.clear()

    def _send(self, node: int, message: Message) -> bool:
        """Return whether the store took the message; if not, the node's end is noticed soon."""
        try:
            self._channels[node].send(encode(message))
        except OSError:
            return False
        return True
