"""The ranks of one launch and their sockets: started, watched and killed together."""

import secrets
import selectors
from collections.abc import Collection

from harness.rank_program.placement import Placement
from harness.supervision.host import Host
from harness.wire.frames import MAX_FRAME, ProtocolError, encode
from harness.wire.link import CHUNK, Event, Link, bytes_at_hand
from harness.wire.messages import (
    BytesFromRank,
    Connected,
    FromNode,
    FromRank,
    Hello,
    Message,
    Order,
)
from harness.worlds.other_hosts import OtherHosts

SEND_TIMEOUT = 5.0
LOG_LINES = 12
UNKNOWN = "unknown, its host did not tell"


class Launch:
    """`size` ranks that connect to this controller: all on this host, or as many on each node."""

    def __init__(
        self,
        size: int,
        placement: Placement,
        nodes: OtherHosts | None = None,
        home: str = "",
        imports: Collection[str] = (),
    ) -> None:
        self.size, self.nodes = size, nodes
        self.links: dict[int, Link] = {}
        # The (dp, sp) whose process groups these ranks have.
        self.meshes: set[tuple[int, int]] = set()
        # Ranks whose host was lost, and how.
        self.lost: dict[int, str] = {}
        # Connections on other hosts, by node and by their number there.
        self._relayed: dict[tuple[int | None, int], Link] = {}
        count, name = nodes.count if nodes else 1, secrets.token_hex(8)
        self.order = Order(
            ranks=size // count,
            environment=placement.environment(),
            home=home,
            imports=sorted(imports),
            nodes=count,
            rendezvous=nodes.rendezvous(name) if nodes else "",
            launch=name,
        )
        self.host = Host(self.order)
        self._selector = selectors.DefaultSelector()
        try:
            self.host.start(self._selector)
        except BaseException:
            self.host.kill()
            raise
        if nodes:
            for link in nodes.links.values():
                self._selector.register(link.socket, selectors.EVENT_READ, link)
            nodes.begin(self.order)

    def events(self, timeout: float) -> list[Event]:
        """Wait at most `timeout` seconds for something to happen; return all that has happened."""
        # A host that was lost before this launch counts as well.
        losses = self.nodes.losses if self.nodes else []
        events = [Event(None, problem="; ".join(losses))] if losses else []
        for key, _ in self._selector.select(0.0 if events else max(0.0, timeout)):
            if key.fileobj is self.host.listener:
                connection, _ = self.host.listener.accept()
                connection.settimeout(SEND_TIMEOUT)
                link = Link(connection, ranks=self.order.ranks_of(0))
                self._selector.register(connection, selectors.EVENT_READ, link)
            elif key.fileobj is self.host.supervisor.pipe:
                for rank in self.host.read_ends():
                    events += self._end_of(rank)
            elif key.fileobj == self.host.supervisor.handle:
                how = self.host.reap_supervisor(self._selector)
                events.append(Event(None, problem=f"the supervisor of the ranks ended, {how}"))
            elif key.data.is_heard:
                events += self._receive(key.data)
        return events

    def _receive(self, link: Link) -> list[Event]:
        try:
            data = link.socket.recv(CHUNK)
        except OSError:
            data = b""
        return self._take_in(link, data)

    def _take_in(self, link: Link, data: bytes) -> list[Event]:
        """Return the events in received bytes; no bytes mean that the peer has closed its end."""
        if not data:
            self._drop(link)
            return self._end_of_link(link)
        events = []
        try:
            for message in link.reader.feed(data):
                if link.rank is not None:
                    events.append(Event(link, message))
                elif link.node is not None:
                    events += self._take_in_from_node(link, message)
                else:
                    self._welcome(link, message)
        except ProtocolError as error:
            self._drop(link)
            events.append(Event(link, problem=str(error)))
        return events

    def _take_in_from_node(self, link: Link, message: FromNode) -> list[Event]:
        """Return the events in a node's message: a report, or something of one of its ranks."""
        assert self.nodes
        if message.launch != self.order.launch:
            # It belongs to an earlier launch.
            return []
        if isinstance(message, Connected):
            self._relayed[link.node, message.connection] = self.nodes.open_link(link, message)
            return []
        if isinstance(message, BytesFromRank):
            relayed = self._relayed.get((link.node, message.connection))
            return self._take_in(relayed, message.data) if relayed and relayed.is_heard else []
        known = {*self.nodes.ended}
        problem = self.nodes.add_report(link, message)
        events = [Event(None, problem=problem)] if problem else []
        for rank in self.nodes.ended.keys() - known:
            events += self._end_of(rank)
        return events

    def _end_of_link(self, link: Link) -> list[Event]:
        if link.rank is not None:
            return [Event(link, problem="died", has_died=True)]
        if link.node is None:
            return []
        # Its ranks end too. They are not the cause, though one of them may be noticed first.
        problem = f"{link.host} is gone"
        for rank in self.links.keys() & self.order.ranks_of(link.node):
            self.lost[rank] = problem
            if self.links[rank].is_heard:
                self._drop(self.links[rank])
        return [Event(None, problem=problem)]

    def _end_of(self, rank: int) -> list[Event]:
        """Return the last messages of a rank whose process has ended, and its end."""
        if rank not in self.links:
            problem = f"died while starting, {self.ended[rank]}"
            return [Event(None, problem=problem, has_died=True, unconnected=rank)]
        link, events = self.links[rank], list[Event]()
        if not link.is_heard:
            return []
        # Another host has passed on the last messages already.
        if not link.host:
            link.socket.setblocking(False)
            for _ in range(0, bytes_at_hand(link.socket) + 1, CHUNK):
                if link.is_heard:
                    events += self._receive(link)
        if link.is_heard:
            self._drop(link)
            events += self._end_of_link(link)
        return events

    def _welcome(self, link: Link, message: FromRank) -> None:
        if not (
            isinstance(message, Hello)
            and message.launch == self.order.launch
            and message.rank in link.ranks
            and message.rank not in self.links
        ):
            raise ProtocolError("an unknown process connected: it is no rank of this pool")
        link.rank, link.pid = message.rank, message.pid
        link.reader.limit = MAX_FRAME
        self.links[message.rank] = link

    def _drop(self, link: Link) -> None:
        """Stop reading from a link.

        A rank's socket stays open: the rank would end, and remove the files of the fault report.
        """
        link.is_heard = False
        # Ranks of other hosts share the one socket of their node.
        if link.node is not None or not link.host:
            self._selector.unregister(link.socket)
        if self.nodes and link.node is not None:
            self.nodes.forget(link.node)
        elif link.rank is None:
            # `kill` finds only links that have a rank or are registered.
            link.close()

    def send(self, rank: int, message: Message) -> bool:
        """Send a message to a rank; return whether its socket took it."""
        if not self.links[rank].is_heard:
            return False
        try:
            self.links[rank].socket.sendall(encode(message))
        except OSError:
            return False
        return True

    @property
    def ended(self) -> dict[int, str]:
        """How ranks ended, as far as their hosts have reported it."""
        return self.host.ended | (self.nodes.ended if self.nodes else {})

    @property
    def hardware(self) -> dict[str, str]:
        """The hardware that ranks report; where they differ, all answers."""
        answers: dict[str, list[str]] = {}
        for link in self.links.values():
            for name, answer in link.hardware.items():
                answers.setdefault(name, []).append(answer)
        return {name: ", ".join(dict.fromkeys(each)) for name, each in answers.items()}

    def missing(self) -> str:
        """Name the ranks that are not ready."""
        ready = [rank for rank, link in self.links.items() if link.is_ready]
        missing = ", ".join(str(rank) for rank in range(self.size) if rank not in ready)
        return f"rank {missing} is missing"

    def progress(self, rank: int) -> str:
        """Return the last key that a rank reached, also if it has ended."""
        if self.nodes and 0 < rank // self.order.ranks not in self.nodes.reported:
            return UNKNOWN
        return self.read(f"progress.{rank}").rstrip(" \0")

    def read(self, name: str) -> str:
        """Return the end of a file of this host, or of another that has reported it."""
        return self.host.read(name) or (self.nodes.read(name) if self.nodes else "")

    def log(self, rank: int | None) -> str:
        """Return the end of a rank's output; of the supervisors' output for None."""
        names = [f"log.{rank}"]
        if rank is None:
            names = [f"supervisor.{node}" for node in range(self.order.nodes)]
        text = "".join(map(self.read, names))
        return "\n".join(text.splitlines()[-LOG_LINES:])

    def logs(self) -> dict[int, str]:
        """Return the end of every rank's output."""
        return {rank: self.log(rank) for rank in range(self.size)}

    def kill(self) -> None:
        """End every process of this launch and remove their files."""
        if self.nodes:
            self.nodes.end()
        self.host.kill()
        strangers = [key.data for key in self._selector.get_map().values() if key.data]
        for link in [*strangers, *self.links.values()]:
            if link.node is None:
                link.close()
        self._selector.close()
