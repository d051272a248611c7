"""The ranks of one launch and their sockets; started, watched, killed as a unit."""

import secrets
import selectors
import socket

from harness.ranks.frames import MAX_FRAME, ProtocolError, encode
from harness.ranks.host import Host, ending
from harness.ranks.link import Event, Link, at_hand
from harness.ranks.messages import From, Hello, Message, OfNode, OfRank, Opened, Order
from harness.ranks.other_hosts import OtherHosts
from harness.ranks.placement import Placement

SEND_TIMEOUT = 5.0
CHUNK = 1 << 20
UNKNOWN = "unknown, its host did not tell"


class Launch:
    """`size` ranks, each connected back to us: all on this host, or as many on every node."""

    def __init__(
        self, size: int, placement: Placement, nodes: OtherHosts | None = None, home: str = ""
    ) -> None:
        self.size, self.nodes = size, nodes
        self.links: dict[int, Link] = {}
        # The (dp, sp) whose process groups these ranks have.
        self.meshes: set[tuple[int, int]] = set()
        # Ranks that went with their host, and what became of it.
        self.lost: dict[int, str] = {}
        # By its number there, each connection on another host.
        self._there: dict[int, Link] = {}
        count, name = nodes.count if nodes else 1, secrets.token_hex(8)
        self.order = Order(
            ranks=size // count,
            environment=placement.environment(),
            home=home,
            nodes=count,
            rendezvous=nodes.meeting_place(name) if nodes else "",
            launch=name,
        )
        self.host = Host(self.order)
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(self.host.supervisor.address)
            self._listener.listen(size)
            self.host.start()
        except BaseException:
            self._listener.close()
            self.host.kill()
            raise
        for there in (self._listener, self.host.supervisor.pipe, self.host.supervisor.handle):
            self._selector.register(there, selectors.EVENT_READ)
        if nodes:
            for link in nodes.links.values():
                self._selector.register(link.socket, selectors.EVENT_READ, link)
            nodes.begin(self.order)

    def events(self, timeout: float) -> list[Event]:
        """What happened within `timeout` seconds, or at once if something already has."""
        # Also of those who were gone before this launch.
        gone = self.nodes.gone if self.nodes else []
        events = [Event(None, broken="; ".join(gone))] if gone else []
        supervisor = self.host.supervisor
        for key, _ in self._selector.select(0.0 if events else max(0.0, timeout)):
            if key.fileobj is self._listener:
                connection, _ = self._listener.accept()
                self._hear(Link(connection))
            elif key.fileobj is supervisor.pipe:
                for rank in self.host.hear():
                    events += self._end_of(rank)
            elif key.fileobj == supervisor.handle:
                self._selector.unregister(supervisor.handle)
                self._selector.unregister(supervisor.pipe)
                how = ending(supervisor.process.wait())
                events.append(Event(None, broken=f"the supervisor of the ranks ended, {how}"))
            elif key.data.heard:
                events += self._receive(key.data)
        return events

    def _hear(self, link: Link) -> None:
        link.socket.settimeout(SEND_TIMEOUT)
        self._selector.register(link.socket, selectors.EVENT_READ, link)

    def _receive(self, link: Link) -> list[Event]:
        try:
            data = link.socket.recv(CHUNK)
        except OSError:
            data = b""
        return self._take_in(link, data)

    def _take_in(self, link: Link, data: bytes) -> list[Event]:
        """What it said; nothing, if it has closed its end."""
        if not data:
            self._drop(link)
            return self._farewell(link)
        events = []
        try:
            for message in link.reader.feed(data):
                if link.rank is not None:
                    events.append(Event(link, message))
                elif link.node is not None:
                    events += self._of_node(link, message)
                else:
                    self._welcome(link, message)
        except ProtocolError as error:
            self._drop(link)
            events.append(Event(link, broken=str(error)))
        return events

    def _of_node(self, link: Link, message: OfNode) -> list[Event]:
        """What a node tells of its ranks, and what it passes on from them."""
        assert self.nodes
        if message.launch != self.order.launch:
            # It belongs to an earlier launch.
            return []
        if isinstance(message, Opened):
            self._there[message.connection] = self.nodes.opened(link, message)
            return []
        if isinstance(message, From):
            rank = self._there.get(message.connection)
            return self._take_in(rank, message.data) if rank and rank.heard else []
        known = {*self.nodes.ended}
        broken = self.nodes.take_in(link, message)
        events = [Event(None, broken=broken)] if broken else []
        for rank_there in self.nodes.ended.keys() - known:
            events += self._end_of(rank_there)
        return events

    def _farewell(self, link: Link) -> list[Event]:
        if link.rank is not None:
            return [Event(link, broken="died", died=True)]
        if link.node is None:
            return []
        # Its ranks go with it, and are not the cause, though one of them may be noticed first.
        left = f"{link.host} is gone"
        for rank in self.links.keys() & self.order.ranks_of(link.node):
            self.lost[rank] = left
            if self.links[rank].heard:
                self._drop(self.links[rank])
        return [Event(None, broken=left)]

    def _end_of(self, rank: int) -> list[Event]:
        """What it sent before it ended; another host has passed that on by now."""
        if rank not in self.links:
            how = self.ended[rank]
            return [Event(None, broken=f"died while starting, {how}", died=True, silent=rank)]
        link, events = self.links[rank], list[Event]()
        if not link.heard:
            return []
        if not link.host:
            link.socket.setblocking(False)
            for _ in range(0, at_hand(link.socket) + 1, CHUNK):
                if link.heard:
                    events += self._receive(link)
        if link.heard:
            self._drop(link)
            events += self._farewell(link)
        return events

    def _welcome(self, link: Link, message: OfRank) -> None:
        if not (
            isinstance(message, Hello)
            and message.launch == self.order.launch
            and message.rank < self.size
            and message.rank not in self.links
            and (message.rank < self.order.ranks) is not bool(link.host)
        ):
            raise ProtocolError("an unknown process connected: it is no rank of this pool")
        link.rank, link.pid = message.rank, message.pid
        link.reader.limit = MAX_FRAME
        self.links[message.rank] = link

    def _drop(self, link: Link) -> None:
        """Hear no more of this rank. It must not notice: it would go, and its traces with it."""
        link.heard = False
        # Ranks of other hosts come through the one socket of their node.
        if link.node is not None or not link.host:
            self._selector.unregister(link.socket)
        if self.nodes and link.node is not None:
            self.nodes.forget(link.node)
        elif link.rank is None:
            # Nobody will look for it again.
            link.close()

    def send(self, rank: int, message: Message) -> bool:
        """Whether the rank's socket took it."""
        if not self.links[rank].heard:
            return False
        try:
            self.links[rank].socket.sendall(encode(message))
        except OSError:
            return False
        return True

    @property
    def ended(self) -> dict[int, str]:
        """How those ranks ended that have, as far as it was told."""
        return self.host.ended | (self.nodes.ended if self.nodes else {})

    @property
    def hardware(self) -> dict[str, str]:
        """What ranks run on, in their own words; where these differ, all of them."""
        told: dict[str, list[str]] = {}
        for link in self.links.values():
            for name, what in link.hardware.items():
                told.setdefault(name, []).append(what)
        return {name: ", ".join(dict.fromkeys(each)) for name, each in told.items()}

    def missing(self) -> str:
        """What has not come up yet."""
        up = [rank for rank, link in self.links.items() if link.ready]
        missing = ", ".join(str(rank) for rank in range(self.size) if rank not in up)
        return f"rank {missing} is missing"

    def progress(self, rank: int) -> str:
        """The last key a rank reached, also of a rank that is gone."""
        if self.nodes and 0 < rank // self.order.ranks not in self.nodes.told:
            return UNKNOWN
        return self.read(f"progress.{rank}").rstrip(" \0")

    def read(self, name: str) -> str:
        """What a process left in a file, here or, as far as it was told, on another host."""
        return self.host.read(name) or (self.nodes.read(name) if self.nodes else "")

    def log(self, rank: int | None, lines: int = 12) -> str:
        """The end of a rank's output, or of its supervisor's."""
        names = [f"log.{rank}"]
        if rank is None:
            names = [f"supervisor.{node}" for node in range(self.order.nodes)]
        text = "".join(map(self.read, names))
        return "\n".join(text.splitlines()[-lines:])

    def logs(self) -> dict[int, str]:
        """The end of every rank's output."""
        return {rank: self.log(rank) for rank in range(self.size)}

    def kill(self) -> None:
        """End every process of this launch and remove what it left."""
        self._listener.close()
        if self.nodes:
            self.nodes.end()
        self.host.kill()
        strangers = [key.data for key in self._selector.get_map().values() if key.data]
        for link in [*strangers, *self.links.values()]:
            if link.node is None:
                link.close()
        self._selector.close()
