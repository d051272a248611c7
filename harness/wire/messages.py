"""The messages between a controller and its processes, one class for each.

Tensors travel as safetensors bytes. This module does not import torch: a supervisor that cannot
import torch reports that with these messages.
"""

from typing import Annotated, Any, ClassVar

import msgspec

from harness.untrusted import printable
from harness.watch.collectives import Collective

Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A message. The fields named in `texts` are made printable, whatever their sender put in."""

    texts: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name in self.texts:
            msgspec.structs.force_setattr(self, name, _printable(getattr(self, name)))


def _printable(value: Any) -> Any:
    if isinstance(value, dict):
        return {printable(name): printable(text) for name, text in value.items()}
    return printable(value)


# Between the controller and a rank.


class Hello(Message, frozen=True):
    """The first message from a rank: its number, and its launch."""

    launch: str
    rank: Whole
    pid: Whole


class Ready(Message, frozen=True):
    """From a rank: it accepts cases. `hardware` describes what it runs on."""

    texts = ("hardware",)

    hardware: dict[str, str]


class Mesh(Message, frozen=True):
    """To all ranks: make the process groups of a mesh."""

    dp: Whole
    sp: Whole


class Run(Message, frozen=True):
    """To a rank: run a case, or only load the candidate."""

    run: Whole
    case: str
    candidate: str
    folder: str
    traced: bool
    oracle: bool
    learns: bool
    is_load_only: bool
    # The variant of plain training to run instead of a step, or "". The candidate is then a
    # recipe, or a step with one.
    plain: str
    # Whether what asks for fp32 gets fp64, as in plain training of a recipe.
    exactly: bool


class Probe(Message, frozen=True):
    """To a rank: report what every thread is doing."""


class Activity(Message, frozen=True):
    """From a rank, in answer to a `Probe`: the stacks of all threads, and more."""

    texts = ("stack", "importing")

    stack: str
    # The module that is being imported, or "".
    importing: str
    collectives: list[Collective]


class Raised(Message, frozen=True):
    """From a rank: the run raised an exception."""

    texts = ("error", "stack")

    run: Whole
    # Wall-clock time in nanoseconds: hosts share no monotonic clock.
    moment: Whole
    error: str
    stack: str


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A fragment without its tensors."""

    key: str
    pads: Whole
    digest: str


class Finished(Message, frozen=True):
    """From a rank: the run ended without an exception, with these results."""

    texts = ("refusal", "limits", "unemitted")

    run: Whole
    pieces: list[Piece]
    # The tensors of the pieces, as safetensors.
    tensors: bytes
    # Keys that were emitted and are not sent.
    skipped: list[str]
    # Why the case was not run, or "".
    refusal: str
    # The candidate's limits, if the case is outside them or was not meant to run.
    limits: str
    # Whether the rank has a device and computed nothing on it.
    idle: bool
    # Bytes that went to peers.
    sent: Whole
    # The most tokens that one call of an embedding was given, if the candidate reports it.
    embedded: Whole
    # What can be wrong with a step of the candidate's recipe, if it has one and was only loaded.
    hypotheses: list[str]
    # The collectives that the candidate entered; with shapes and dtypes if the run is traced.
    order: list[tuple[str, str, str, str, Whole]]
    # Packages that were replaced by plain torch.
    stood_in: list[str]
    # Parameters that have gradients and were not emitted, if the run `learns`; or "".
    unemitted: str


# Between a supervisor of ranks and the process that started it: a controller or a host keeper.


class Start(Message, frozen=True):
    """To a supervisor: start one rank for each of these environments."""

    environments: list[dict[str, str]]
    # The current folder of each rank.
    folder: str
    # Whether the supervisor forks ranks, or starts each as a fresh Python process.
    should_fork: bool


class Stop(Message, frozen=True):
    """To a supervisor: end the ranks, and every process that they started."""


class Up(Message, frozen=True):
    """From a supervisor: it has imported what it needs."""


class Ended(Message, frozen=True):
    """From a supervisor: the process of a rank, by its number on this host, has ended."""

    local: Whole
    # The exit status, or the negative number of a signal.
    code: int


class Stopped(Message, frozen=True):
    """From a supervisor: the ranks and their descendants have ended."""


# Between the controller and the host keeper of another host.


class Order(Message, frozen=True, kw_only=True):
    """To a node: start ranks. The controller's own host takes the same order."""

    # On each host.
    ranks: Whole
    # Variables that name the ranks' devices.
    environment: dict[str, str]
    # The published candidate whose packages the ranks need; each host has its own copy.
    home: str = ""
    # What the ranks import that takes long.
    imports: list[str] = []
    nodes: Whole = 1
    node: Whole = 0
    # The store address at which the ranks of several hosts meet.
    rendezvous: str = ""
    # The name of the launch; each rank repeats it in its `Hello`.
    launch: str

    def ranks_of(self, node: int) -> range:
        return range(node * self.ranks, (node + 1) * self.ranks)


class EndLaunch(Message, frozen=True):
    """To a node: end the ranks of the last order."""


class ReportRequest(Message, frozen=True):
    """To a node: send a `HostReport`."""


class Dismiss(Message, frozen=True):
    """To a node: there will be no other order."""


class BytesToRank(Message, frozen=True):
    """To a node: bytes for one of its ranks."""

    launch: str
    connection: Whole
    data: bytes


class Connected(Message, frozen=True):
    """From a node: a process has connected, as a rank does."""

    launch: str
    connection: Whole


class BytesFromRank(Message, frozen=True):
    """From a node: bytes from one of its ranks; no bytes if the rank has closed its end."""

    launch: str
    connection: Whole
    data: bytes


class HostReport(Message, frozen=True):
    """From a node: everything that can be known on that host only."""

    texts = ("supervisor", "files", "ranks")

    launch: str
    # How the supervisor ended, or "".
    supervisor: str
    # The ends of files, by name.
    files: dict[str, str]
    # How ranks ended, by rank.
    ranks: dict[str, str]


FromRank = Hello | Ready | Activity | Raised | Finished
ToRank = Mesh | Run | Probe
FromSupervisor = Up | Ended | Stopped
ToSupervisor = Start | Stop
FromNode = Connected | BytesFromRank | HostReport
ToNode = Order | EndLaunch | ReportRequest | Dismiss | BytesToRank
