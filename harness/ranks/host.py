"""The ranks of one launch on one host, and the files that outlive them."""

import contextlib
import os
import signal
import socket
from pathlib import Path

from harness.candidates import interpreter
from harness.ranks import supervisor
from harness.ranks.controller_link import LAUNCH
from harness.ranks.messages import Ended, Order, Start
from harness.ranks.placement import MEETING, PLACEMENT, PRETEND, Placement
from harness.untrusted import printable

# A fork may start CUDA, because the supervisor never does. Other drivers were not tried.
FORKED = ("cpu", PRETEND, "cuda")
# The end of a file is enough: bytes that are read here, and that go to another host.
READ, TAIL = 1 << 16, 1 << 14
LOOPBACK, ASYNC_ERRORS = "127.0.0.1", "TORCH_NCCL_ASYNC_ERROR_HANDLING"
# Where it is not said, a transport asks for the host's own name for every new group.
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def environments(order: Order, folder: Path) -> list[dict[str, str]]:
    """What each rank of this host is told, under the names that torchrun has for it."""
    # Nobody of ours listens there; a candidate may.
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    common = {
        **_meeting(order, folder),
        **order.environment,
        LAUNCH: order.launch,
        "WORLD_SIZE": str(order.nodes * order.ranks),
        "LOCAL_WORLD_SIZE": str(order.ranks),
        "GROUP_RANK": str(order.node),
        "GROUP_WORLD_SIZE": str(order.nodes),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(order.nodes * order.ranks),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "ranks",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        ASYNC_ERRORS: os.environ.get(ASYNC_ERRORS, "1"),
    }
    return [
        {**common, "RANK": str(rank), "ROLE_RANK": str(rank), "LOCAL_RANK": str(local)}
        for local, rank in enumerate(order.ranks_of(order.node))
    ]


def _meeting(order: Order, folder: Path) -> dict[str, str]:
    """How ranks find each other: those of one host in a file, and they talk over loopback."""
    if order.nodes > 1:
        return {MEETING: order.rendezvous}
    talk = {name: os.environ.get(name, "lo") for name in INTERFACES}
    return {**talk, MEETING: str(folder / "ranks")}


def forks(order: Order) -> bool:
    """Whether the supervisor forks ranks: it has imported torch, most of what a launch costs.

    They share its seed for hashes then: what relies on the order of a set, which elsewhere is
    another on every rank, shows only where none is forked.
    """
    return Placement.read(order.environment[PLACEMENT]).device in FORKED


class Host:
    """The processes of one order on this host."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._ranks = order.ranks_of(order.node)
        self._kind, self.supervisor = supervisor.take(interpreter(order.home))
        self._folder = self.supervisor.folder
        # By rank, in the order in which they ended.
        self.ended: dict[int, str] = {}

    def start(self) -> None:
        """Ranks connect to the address of their supervisor."""
        # What torch and candidates leave there goes with the rest.
        (temporary := self._folder / "tmp").mkdir()
        told = environments(self._order, self._folder)
        told = [each | {"TMPDIR": str(temporary)} for each in told]
        self.supervisor.start(Start(told, str(Path.cwd()), forks(self._order)))

    def hear(self) -> list[int]:
        """The ranks that have ended, now that the supervisor has something to say."""
        ended = []
        for message in self.supervisor.receive():
            if isinstance(message, Ended):
                rank = self._ranks[message.local]
                self.ended[rank] = ending(message.code)
                ended.append(rank)
        return ended

    def read(self, name: str) -> str:
        """What `supervisor.NODE` or a rank wrote: `log.RANK`, `progress.RANK` or `crash.RANK`."""
        kind, _, number = name.partition(".")
        if kind == "supervisor":
            here = int(number) == self._order.node
            return _text(self.supervisor.output(READ)) if here else ""
        local = int(number) - self._ranks.start
        files = f"logs/*/attempt_0/{local}/*.log" if kind == "log" else name
        text = ""
        for file in sorted(self._folder.glob(files)):
            with contextlib.suppress(OSError), file.open("rb") as opened:
                opened.seek(max(0, os.fstat(opened.fileno()).st_size - READ))
                text += _text(opened.read(READ))
        return text

    def left(self) -> dict[str, str]:
        """The end of everything that can be read here."""
        kinds = ("log", "progress", "crash")
        of_ranks = [f"{kind}.{rank}" for kind in kinds for rank in self._ranks]
        names = [f"supervisor.{self._order.node}", *of_ranks]
        return {name: self.read(name)[-TAIL:] for name in names}

    def kill(self) -> None:
        """End every process, and remove what they left."""
        if self.supervisor.stop():
            supervisor.give_back(self._kind, self.supervisor)
        else:
            self.supervisor.end()


def _text(end: bytes) -> str:
    return printable(end.decode(errors="replace").replace("\0", ""))


def ending(code: int) -> str:
    """An exit status in words."""
    names = {number.value: number.name for number in signal.Signals}
    return f"killed by {names.get(-code, -code)}" if code < 0 else f"exit status {code}"
