"""Start and watch the ranks of this host for a controller on another, and pass on their bytes.

Launches follow one another. A launch ends when the controller asks for it, and at the latest when
the channel to the controller ends.
"""

import contextlib
import itertools
import selectors
from typing import TYPE_CHECKING

from harness.processes.process_exit import describe_exit
from harness.supervision.host import Host
from harness.wire.frames import Reader, encode
from harness.wire.link import CHUNK, bytes_at_hand
from harness.wire.messages import (
    BytesFromRank,
    BytesToRank,
    Connected,
    Dismiss,
    EndLaunch,
    FromNode,
    HostReport,
    Order,
    ReportRequest,
    ToNode,
)
from harness.worlds.channel import Channel, channel_keys
from harness.worlds.world import World

if TYPE_CHECKING:
    import socket


def serve_ranks(world: World) -> bool:
    """Do the work of a process that is not rank 0 of its launcher; false if it was cut short."""
    hosts = world.hosts(world.connect())
    node = next(number for number, ranks in enumerate(hosts) if world.rank in ranks)
    if node == 0 or world.rank != hosts[node][0]:
        # The lowest rank of a host keeps all ranks there.
        return True
    to_node, from_node = channel_keys(node)
    channel = Channel(world.connect, outgoing=from_node, incoming=to_node)
    with contextlib.closing(HostKeeper(channel)) as keeper:
        return keeper.serve()


class HostKeeper:
    """The ranks of this host, and this host's end of the channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._reader = Reader[ToNode](ToNode)
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel.socket, selectors.EVENT_READ)
        self._launch = ""
        self._host: Host | None = None
        # By number; a later launch never uses a number again.
        self._connections: dict[int, socket.socket] = {}
        self._numbers = itertools.count()

    def serve(self) -> bool:
        """Obey the controller until it dismisses this host; false if the channel ends before."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._channel.socket:
                    data = self._channel.socket.recv(CHUNK)
                    if not data:
                        return False
                    for message in self._reader.feed(data):
                        if isinstance(message, Dismiss):
                            return True
                        self._obey(message)
                elif self._host and key.fileobj in self._selector.get_map():
                    self._read(self._host, key.fileobj, key.data)

    def _obey(self, message: Order | EndLaunch | ReportRequest | BytesToRank) -> None:
        match message:
            case Order():
                self.end()
                self._launch, self._host = message.launch, Host(message)
                self._host.start(self._selector)
            case EndLaunch():
                self.end()
            case ReportRequest():
                self._report()
            case BytesToRank() if message.launch == self._launch:
                # Sending fails only if the rank is exiting, and that is noticed elsewhere.
                with contextlib.suppress(OSError, KeyError):
                    self._connections[message.connection].sendall(message.data)

    def _read(self, host: Host, source: object, number: int | None) -> None:
        """Pass on what a source has to read; `number` is that of a connection."""
        if source is host.listener:
            number = next(self._numbers)
            self._connections[number], _ = host.listener.accept()
            self._selector.register(self._connections[number], selectors.EVENT_READ, number)
            self._send(Connected(self._launch, number))
        elif source is host.supervisor.pipe:
            if host.read_ends():
                # The bytes that the ranks sent must arrive before the news of their end.
                for number, connection in self._connections.items():
                    if connection in self._selector.get_map():
                        for _ in range(0, bytes_at_hand(connection), CHUNK):
                            self._pass_on(number)
                self._report()
        elif source == host.supervisor.handle:
            host.reap_supervisor(self._selector)
            self._report()
        elif number is not None:
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        connection = self._connections[number]
        try:
            data = connection.recv(CHUNK)
        except OSError:
            data = b""
        if not data:
            # Do not close it: the rank would end, and remove the files that are still to be read.
            self._selector.unregister(connection)
        self._send(BytesFromRank(self._launch, number, data))

    def _report(self) -> None:
        """Send everything that can be known on this host only."""
        if self._host:
            status = self._host.supervisor.process.returncode
            self._send(
                HostReport(
                    self._launch,
                    supervisor="" if status is None else describe_exit(status),
                    files=self._host.read_all(),
                    ranks={str(rank): how for rank, how in self._host.ended.items()},
                )
            )

    def _send(self, message: FromNode) -> None:
        # If the store has ended, the channel is about to end as well.
        with contextlib.suppress(OSError):
            self._channel.send(encode(message))

    def close(self) -> None:
        self.end()
        self._channel.close()

    def end(self) -> None:
        """End the launch under way, if there is one."""
        host, self._host = self._host, None
        if not host:
            return
        for key in [*self._selector.get_map().values()]:
            if key.fileobj is not self._channel.socket:
                self._selector.unregister(key.fileobj)
        host.kill()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
