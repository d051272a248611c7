"""One torchrun on a leash: a host's ranks of one launch, and the files that outlive them."""

import contextlib
import os
import shutil
import signal
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import harness
from harness.candidates import interpreter
from harness.importing import SAFE_PATH
from harness.outside import printable
from harness.ranks import place, worker
from harness.ranks.begin import UNKNOWN, forked_if_again, started
from harness.ranks.collectives import ENVIRONMENT
from harness.ranks.endings import ending_of
from harness.ranks.leash import ADDRESS, CONTROLLER, kill_below, sweep
from harness.ranks.placement import MEETING, PLACEMENT, Placement
from harness.ranks.wire import Frame
from harness.ranks.worker import ENDPOINT, FIRST, TOKEN, WORLD

# Of a file, the end is enough: what is read here, and what goes to another host.
READ, TAIL = 1 << 16, 1 << 14
LOOPBACK = "127.0.0.1"
# torchrun would have one for its ranks, which listens to everybody.
WITHOUT_A_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
# Where it is not said, a transport asks for the host's own name for every new group.
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a host is to start, as one host tells it to another."""

    # On each host.
    ranks: int
    # What tells them of their devices.
    environment: dict[str, str]
    # The published candidate whose packages they need; each host has its own copy.
    home: str = ""
    # What they know, and never say.
    token: str
    nodes: int = 1
    node: int = 0
    # Where the ranks of several hosts meet.
    rendezvous: str = ""
    name: str = ""

    def told(self, node: int) -> dict[str, Any]:
        """For another host, which knows the token by itself."""
        told = asdict(replace(self, node=node))
        del told["token"]
        return told

    @classmethod
    def read(cls, frame: Frame, token: str) -> Self:
        """As it came over the wire, but for what is not said there."""
        return cls(
            ranks=frame.whole("ranks"),
            environment=frame.texts("environment"),
            home=frame.text("home"),
            token=token,
            nodes=frame.whole("nodes"),
            node=frame.whole("node"),
            rendezvous=frame.text("rendezvous"),
            name=frame.text("name"),
        )

    def ranks_of(self, node: int) -> range:
        return range(node * self.ranks, (node + 1) * self.ranks)

    def options(self, folder: Path) -> list[str]:
        """In torchrun's words; each host has one that knows of no other.

        It meets itself in a file: a port would be open to the network, where whoever reaches it
        has torchrun unpickle what he likes; and to reach one's own can take minutes where names
        lead nowhere.
        """
        return [
            *("--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file"),
            *("--rdzv-endpoint", str(folder / "torchruns"), "--local-addr", LOOPBACK),
            *("--nproc-per-node", str(self.ranks), "--max-restarts", "0"),
        ]

    def meeting(self, folder: Path) -> dict[str, str]:
        """How ranks find each other: those of one host in a file, and they talk over loopback."""
        if self.nodes > 1:
            return {**WITHOUT_A_STORE, MEETING: self.rendezvous}
        talk = {name: os.environ.get(name, "lo") for name in INTERFACES}
        return {**WITHOUT_A_STORE, **talk, MEETING: str(folder / "ranks")}

    @property
    def forks(self) -> bool:
        """Whether torchrun forks the ranks: not where they have drivers of devices to start."""
        return Placement.read(self.environment[PLACEMENT]).on_cpu

    @property
    def program(self) -> list[str]:
        """What each rank runs, and how it starts.

        torchrun has imported torch already, which is most of what a launch costs, and ranks that
        it forks need not do it again. They share its seed for hashes then: what relies on the
        order of a set, which elsewhere is another on every rank, shows only where none is forked.
        """
        if self.forks:
            return ["--start-method", "fork", "--run-path", worker.__file__]
        return ["-m", worker.__name__]


class Torchrun:
    """The processes of one order on this host."""

    def __init__(self, order: Order, *, endpoint: str = "") -> None:
        self._order, self._endpoint = order, endpoint
        self._ranks = order.ranks_of(order.node)
        self._folder = place.make()
        self._held = place.hold(self._folder)
        self.address = str(self._folder / "controller")

    def start(self) -> None:
        """Ranks connect to the endpoint; without one to a socket at our address."""
        source = str(Path(harness.__file__).parent.parent)
        # An empty one would be the current folder.
        paths = [source, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        logs = ["--log-dir", str(self._folder / "logs"), "--redirects", "3"]
        python = interpreter(self._order.home)
        words = [*self._order.options(self._folder), *logs, *self._order.program]
        environment = {
            **os.environ,
            **ENVIRONMENT,
            **self._order.meeting(self._folder),
            **self._order.environment,
            ADDRESS: self.address,
            # What torch and candidates leave there goes with the rest.
            "TMPDIR": str(self._folder / "tmp"),
            ENDPOINT: self._endpoint,
            CONTROLLER: str(os.getpid()),
            TOKEN: self._order.token,
            FIRST: str(self._ranks.start),
            WORLD: str(self._order.nodes * self._order.ranks),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(paths),
            # What lies in the current folder may be a stranger's: nothing of it is imported.
            **SAFE_PATH,
        }
        try:
            (self._folder / "tmp").mkdir()
            with (self._folder / f"torchrun.{self._order.node}").open("wb") as output:
                begin = forked_if_again if self._order.forks else started
                self.process = begin(python, words, environment, output)
        except BaseException:
            self._discard()
            raise
        try:
            # Readable once torchrun has ended.
            self.handle = ending_of(self.process.pid)
        except BaseException:
            kill_group(self.process.pid)
            self.process.wait()
            self._discard()
            raise

    def read(self, name: str) -> str:
        """What `torchrun.NODE` or a rank wrote: `log.RANK`, `progress.RANK` or `crash.RANK`."""
        kind, _, number = name.partition(".")
        local = int(number) - self._ranks.start
        files = f"logs/*/attempt_0/{local}/*.log" if kind == "log" else name
        text = ""
        for file in sorted(self._folder.glob(files)):
            with contextlib.suppress(OSError), file.open("rb") as opened:
                opened.seek(max(0, os.fstat(opened.fileno()).st_size - READ))
                end = opened.read(READ).decode(errors="replace")
                text += printable(end.replace("\0", ""))
        return text

    def left(self) -> dict[str, str]:
        """The end of everything that can be read here."""
        kinds = ("log", "progress", "crash")
        of_ranks = [f"{kind}.{rank}" for kind in kinds for rank in self._ranks]
        names = [f"torchrun.{self._order.node}", *of_ranks]
        return {name: self.read(name)[-TAIL:] for name in names}

    def kill(self) -> None:
        """End every process and remove the folder."""
        if self.process.returncode is None:
            # What ranks left behind has come to it.
            kill_below([self.process.pid])
            kill_group(self.process.pid)
        # Those that left their session as well.
        sweep(self.address)
        self.process.wait()
        os.close(self.handle)
        self._discard()

    def _discard(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._held)


def ending(code: int) -> str:
    """An exit status in words."""
    if code == UNKNOWN:
        return "nobody could say how"
    names = {number.value: number.name for number in signal.Signals}
    return f"killed by {names.get(-code, -code)}" if code < 0 else f"exit status {code}"


def kill_group(pid: int) -> None:
    """End a process and its group, if they are still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
