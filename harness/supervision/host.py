"""The processes of one launch on one host, and the files that outlive them."""

import contextlib
import os
import selectors
import socket
from pathlib import Path

from harness.candidates import interpreter
from harness.processes.process_exit import describe_exit
from harness.rank_program.controller_link import LAUNCH
from harness.rank_program.placement import MEETING, PLACEMENT, PRETEND, Placement
from harness.supervision import supervisor
from harness.untrusted import printable
from harness.wire.messages import Ended, Order, Start

# A fork can start CUDA because the supervisor never does. Other drivers were not tried.
FORKED = ("cpu", PRETEND, "cuda")
# torch imports it, for seconds, where a process first has an optimizer, DDP or a checkpoint.
FIRST_USE = "torch._dynamo"
# Only the end of a file is needed: how many bytes are read, and how many go to another host.
READ, TAIL = 1 << 16, 1 << 14
LOOPBACK, ASYNC_ERRORS = "127.0.0.1", "TORCH_NCCL_ASYNC_ERROR_HANDLING"
# Without these, a transport looks up the host's own name for every new group.
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def rank_environments(order: Order, folder: Path) -> list[dict[str, str]]:
    """Return the variables of each rank of this host, as torchrun would set them."""
    # The harness does not listen at this port; a candidate may.
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
    """Where ranks meet: in the launcher's store, or on one host in a file and over loopback."""
    if order.nodes > 1:
        return {MEETING: order.rendezvous}
    interfaces = {name: os.environ.get(name, "lo") for name in INTERFACES}
    return {**interfaces, MEETING: str(folder / "ranks")}


def should_fork(order: Order) -> bool:
    """Whether the supervisor forks ranks, which saves each of them the import of torch.

    Forked ranks share the supervisor's hash seed. A candidate that relies on the order of a set,
    which differs between separately started ranks, shows that only where ranks are not forked.
    """
    return Placement.read(order.environment[PLACEMENT]).device in FORKED


def imports_for_all(order: Order) -> list[str]:
    """Return what the supervisor imports before it forks ranks.

    An import may ask how many devices there are. If they are not CPUs, a rank has to ask that: it
    starts the driver, and only ranks know of a pretended GPU.
    """
    if Placement.read(order.environment[PLACEMENT]).device != "cpu":
        return []
    return [FIRST_USE, *order.imports]


class Host:
    """The processes of one order on this host, and the socket to which its ranks connect."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._ranks = order.ranks_of(order.node)
        self.supervisor = supervisor.take(interpreter(order.home), imports_for_all(order))
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._folder = self.supervisor.folder
        # How each rank ended, in the order in which they did.
        self.ended: dict[int, str] = {}

    def start(self, selector: selectors.BaseSelector) -> None:
        """Start the ranks, and watch for their connections and for news of the supervisor."""
        self.listener.bind(self.supervisor.address)
        self.listener.listen(len(self._ranks))
        # Temporary files of torch and of candidates are removed with the folder.
        (temporary := self._folder / "tmp").mkdir()
        variables = rank_environments(self._order, self._folder)
        variables = [each | {"TMPDIR": str(temporary)} for each in variables]
        self.supervisor.start(Start(variables, str(Path.cwd()), should_fork(self._order)))
        for source in (self.listener, self.supervisor.pipe, self.supervisor.handle):
            selector.register(source, selectors.EVENT_READ)

    def read_ends(self) -> list[int]:
        """Read the messages of the supervisor; return the ranks that have ended."""
        ended = []
        for message in self.supervisor.receive():
            if isinstance(message, Ended):
                rank = self._ranks[message.local]
                self.ended[rank] = describe_exit(message.code)
                ended.append(rank)
        return ended

    def reap_supervisor(self, selector: selectors.BaseSelector) -> str:
        """Stop watching the supervisor, which has ended; return how it ended."""
        selector.unregister(self.supervisor.handle)
        selector.unregister(self.supervisor.pipe)
        return describe_exit(self.supervisor.reap())

    def read(self, name: str) -> str:
        """Return the end of `supervisor.NODE`, `log.RANK`, `progress.RANK` or `crash.RANK`."""
        kind, _, number = name.partition(".")
        if kind == "supervisor":
            is_here = int(number) == self._order.node
            return _text(self.supervisor.output(READ)) if is_here else ""
        local = int(number) - self._ranks.start
        files = f"logs/*/attempt_0/{local}/*.log" if kind == "log" else name
        text = ""
        for file in sorted(self._folder.glob(files)):
            with contextlib.suppress(OSError), file.open("rb") as opened:
                opened.seek(max(0, os.fstat(opened.fileno()).st_size - READ))
                text += _text(opened.read(READ))
        return text

    def read_all(self) -> dict[str, str]:
        """Return the ends of all files that can be read here, by name."""
        kinds = ("log", "progress", "crash")
        of_ranks = [f"{kind}.{rank}" for kind in kinds for rank in self._ranks]
        names = [f"supervisor.{self._order.node}", *of_ranks]
        return {name: self.read(name)[-TAIL:] for name in names}

    def kill(self) -> None:
        """End every process of the order, and remove their files."""
        self.listener.close()
        supervisor.give_back(self.supervisor)


def _text(end: bytes) -> str:
    return printable(end.decode(errors="replace").replace("\0", ""))
