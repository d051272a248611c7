"""The ranks of this host, for a controller on another: started, watched, and passed on.

Launches come one after the other; what was launched ends when the controller says so, and at the
latest when nothing is heard of it any more.
"""

import contextlib
import itertools
import selectors
import socket

from harness.ranks.channel import Channel
from harness.ranks.frames import Reader, encode
from harness.ranks.host import Host, ending
from harness.ranks.link import at_hand
from harness.ranks.messages import Bye, End, From, Left, Opened, Order, Tell, To, ToNode
from harness.ranks.other_hosts import named
from harness.ranks.world import World

CHUNK = 1 << 20


def follow(world: World) -> bool:
    """What every process of a launcher does but the first; whether all ended in order."""
    hosts = world.hosts(world.connect())
    node = next(number for number, ranks in enumerate(hosts) if world.rank in ranks)
    if node == 0 or world.rank != hosts[node][0]:
        # The first of its host does it for all.
        return True
    ours, theirs = named(node)
    keeper = HostKeeper(Channel(world.connect, theirs, ours))
    try:
        return keeper.serve()
    finally:
        keeper.close()


class HostKeeper:
    """This host's end of the channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._reader = Reader[ToNode](ToNode)
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel.socket, selectors.EVENT_READ)
        # Launches come one after the other; no connection has the number of another.
        self._launch = ""
        self._host: Host | None = None
        self._listener: socket.socket | None = None
        self._connections: dict[int, socket.socket] = {}
        self._numbers = itertools.count()

    def serve(self) -> bool:
        """Do as the controller says until it is done; false if it is gone before."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._channel.socket:
                    data = self._channel.socket.recv(CHUNK)
                    if not data:
                        return False
                    for message in self._reader.feed(data):
                        if isinstance(message, Bye):
                            return True
                        self._obey(message)
                elif self._host and key.fileobj in self._selector.get_map():
                    self._hear(self._host, key.fileobj, key.data)

    def _obey(self, message: Order | End | Tell | To) -> None:
        match message:
            case Order():
                self.end()
                self._start(message)
            case End():
                self.end()
            case Tell():
                self._tell()
            case To() if message.launch == self._launch:
                # A rank that does not take it is about to be gone.
                with contextlib.suppress(OSError, KeyError):
                    self._connections[message.connection].sendall(message.data)

    def _start(self, order: Order) -> None:
        self._launch, self._host = order.launch, Host(order)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._host.supervisor.address)
        self._listener.listen(order.ranks)
        self._host.start()
        supervisor = self._host.supervisor
        for there in (self._listener, supervisor.pipe, supervisor.handle):
            self._selector.register(there, selectors.EVENT_READ)

    def _hear(self, host: Host, source: object, number: int | None) -> None:
        supervisor = host.supervisor
        if source is self._listener and self._listener:
            number = next(self._numbers)
            self._connections[number], _ = self._listener.accept()
            self._selector.register(self._connections[number], selectors.EVENT_READ, number)
            self._say(Opened(self._launch, number))
        elif source is supervisor.pipe:
            if host.hear():
                # What they sent comes before their end.
                for number, connection in self._connections.items():
                    if connection in self._selector.get_map():
                        for _ in range(0, at_hand(connection), CHUNK):
                            self._pass_on(number)
                self._tell()
        elif source == supervisor.handle:
            for there in (supervisor.pipe, supervisor.handle):
                self._selector.unregister(there)
            supervisor.process.wait()
            self._tell()
        elif number is not None:
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        connection = self._connections[number]
        try:
            data = connection.recv(CHUNK)
        except OSError:
            data = b""
        if not data:
            # It must not notice: it would go, and its traces with it.
            self._selector.unregister(connection)
        self._say(From(self._launch, number, data))

    def _tell(self) -> None:
        """All that can be known on this host only."""
        if self._host:
            status = self._host.supervisor.process.returncode
            self._say(
                Left(
                    self._launch,
                    supervisor="" if status is None else ending(status),
                    files=self._host.left(),
                    ranks={str(rank): how for rank, how in self._host.ended.items()},
                )
            )

    def _say(self, message: Opened | From | Left) -> None:
        # If it is not taken, we are about to hear nothing more.
        with contextlib.suppress(OSError):
            self._channel.send(encode(message))

    def close(self) -> None:
        self.end()
        self._channel.close()

    def end(self) -> None:
        """End what was launched."""
        host, self._host = self._host, None
        if not host:
            return
        for key in [*self._selector.get_map().values()]:
            if key.fileobj is not self._channel.socket:
                self._selector.unregister(key.fileobj)
        if self._listener:
            self._listener.close()
        host.kill()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
