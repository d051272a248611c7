"""One torchrun on a leash: a host's ranks of one launch, and the files that outlive them."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import harness
from harness.candidates import interpreter
from harness.ranks import worker
from harness.ranks.collectives import ENVIRONMENT
from harness.ranks.leash import ADDRESS, CONTROLLER, sweep
from harness.ranks.placement import PLACEMENT, Placement
from harness.ranks.wire import Frame
from harness.ranks.worker import ENDPOINT, TOKEN

# The end of a file is enough for whoever reads it on another host.
TAIL = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a host is to start, as one host tells it to another."""

    # On each host.
    ranks: int
    # What tells them of their devices.
    environment: dict[str, str]
    # The published candidate whose packages they need; each host has its own copy.
    home: str = ""
    # What they say to be let in.
    token: str
    nodes: int = 1
    node: int = 0
    # Where the torchruns of several hosts meet, and under which name.
    rendezvous: str = ""
    name: str = ""

    @classmethod
    def read(cls, frame: Frame) -> Self:
        """As it came over the wire."""
        return cls(
            ranks=frame.whole("ranks"),
            environment=frame.texts("environment"),
            home=frame.text("home"),
            token=frame.text("token"),
            nodes=frame.whole("nodes"),
            node=frame.whole("node"),
            rendezvous=frame.text("rendezvous"),
            name=frame.text("name"),
        )

    def ranks_of(self, node: int) -> range:
        return range(node * self.ranks, (node + 1) * self.ranks)

    @property
    def options(self) -> list[str]:
        """In torchrun's words."""
        meeting = ["--standalone"]
        if self.nodes > 1:
            # Static: it is known which ranks are where, and no host looks up its own name.
            meeting = [
                *("--rdzv-backend", "static", "--rdzv-endpoint", self.rendezvous),
                *("--rdzv-id", self.name),
                *("--nnodes", str(self.nodes), "--node-rank", str(self.node)),
            ]
        return [*meeting, "--nproc-per-node", str(self.ranks), "--max-restarts", "0"]

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
        # A private folder: only this user can reach a socket in it, and the path stays short
        # enough for one (about 100 bytes).
        self._folder = Path(tempfile.mkdtemp(prefix="harness-"))
        self.address = str(self._folder / "controller")

    def start(self) -> None:
        """Ranks connect to the endpoint; without one to a socket at our address."""
        source = str(Path(harness.__file__).parent.parent)
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        logs = ["--log-dir", str(self._folder / "logs"), "--redirects", "3"]
        command = [
            *(interpreter(self._order.home), "-m", "harness.ranks.leash"),
            *self._order.options,
            *logs,
            *self._order.program,
        ]
        environment = {
            **os.environ,
            **ENVIRONMENT,
            **self._order.environment,
            ADDRESS: self.address,
            ENDPOINT: self._endpoint,
            CONTROLLER: str(os.getpid()),
            TOKEN: self._order.token,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(paths),
        }
        try:
            with (self._folder / f"torchrun.{self._order.node}").open("wb") as output:
                self.process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # Its own session: a Ctrl-C at the terminal is for the controller alone.
                    start_new_session=True,
                )
        except BaseException:
            self._discard()
            raise
        # Readable once torchrun has ended.
        self.handle = os.pidfd_open(self.process.pid)

    def read(self, name: str) -> str:
        """What `torchrun.NODE` or a rank wrote: `log.RANK`, `progress.RANK` or `crash.RANK`."""
        kind, _, number = name.partition(".")
        local = int(number) - self._ranks.start
        files = f"logs/*/attempt_0/{local}/*.log" if kind == "log" else name
        text = ""
        for file in sorted(self._folder.glob(files)):
            with contextlib.suppress(OSError):
                text += file.read_text(errors="replace")
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
            kill_group(self.process.pid)
        # Those that left their session as well.
        sweep(self.address)
        self.process.wait()
        os.close(self.handle)
        self._discard()

    def _discard(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def ending(code: int) -> str:
    """An exit status in words."""
    names = {number.value: number.name for number in signal.Signals}
    return f"killed by {names.get(-code, -code)}" if code < 0 else f"exit status {code}"


def kill_group(pid: int) -> None:
    """End a process and its group, if they are still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
