"""What a controller and its processes say to each other: one class a message.

Tensors in it are bytes as safetensors has them. No torch here: a supervisor says in this way that
it cannot import it.
"""

from typing import Annotated, Any, ClassVar

import msgspec

from harness.untrusted import printable
from harness.watch.collectives import Collective

Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Its texts can be printed, whoever made them."""

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
    """From a rank, first of all: which one of which launch it is."""

    launch: str
    rank: Whole
    pid: Whole


class Ready(Message, frozen=True):
    """From a rank: it can be given cases. What it runs on, in its own words."""

    texts = ("hardware",)

    hardware: dict[str, str]


class Mesh(Message, frozen=True):
    """To all ranks: make the process groups of a mesh."""

    dp: Whole
    sp: Whole


class Run(Message, frozen=True):
    """To a rank: run a case, or if it `loads`, load the candidate and no more."""

    run: Whole
    case: str
    candidate: str
    folder: str
    traced: bool
    oracle: bool
    learns: bool
    loads: bool


class Probe(Message, frozen=True):
    """To a rank: say what you are doing, whatever that is."""


class Doing(Message, frozen=True):
    """From a rank, once it is asked."""

    texts = ("stack", "importing")

    # The stacks of all threads.
    stack: str
    # The module whose import it is in, if it is in one.
    importing: str
    collectives: list[Collective]


class Raised(Message, frozen=True):
    """From a rank: the run raised."""

    texts = ("error", "stack")

    run: Whole
    # Hosts have no other clock in common.
    moment: Whole
    error: str
    stack: str


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A fragment without its tensors."""

    key: str
    pads: Whole
    digest: str


class Finished(Message, frozen=True):
    """From a rank: the run came to its end, and this is what came of it."""

    texts = ("refusal", "limits", "unemitted")

    run: Whole
    pieces: list[Piece]
    # The tensors of the pieces, as safetensors.
    tensors: bytes
    # Keys of what was emitted and is not sent.
    skipped: list[str]
    # Why it was not run, and the limits of the candidate if it is that or if nothing was run.
    refusal: str
    limits: str
    # It is on a device on which it computed nothing.
    idle: bool
    # Bytes that went to peers.
    sent: Whole
    # What it entered of its own accord; with shapes and dtypes where it is traced.
    order: list[tuple[str, str, str, str, Whole]]
    stood_in: list[str]
    # What learned and was not emitted, where that was asked.
    unemitted: str


# Between a controller, or who keeps the ranks of another host, and the supervisor of ranks.


class Start(Message, frozen=True):
    """To a supervisor: start these ranks. Each is told what is in its environment."""

    environments: list[dict[str, str]]
    # Where each begins.
    folder: str
    # Whether the supervisor forks ranks, or starts each as a process of its own.
    forks: bool


class Stop(Message, frozen=True):
    """To a supervisor: end them, and all that they started."""


class Up(Message, frozen=True):
    """From a supervisor: it has imported what it needs."""


class Ended(Message, frozen=True):
    """From a supervisor: the process of a rank of this host has ended, and how."""

    local: Whole
    code: int


class Stopped(Message, frozen=True):
    """From a supervisor: nothing is left of them."""


# Between the controller and who keeps the ranks of another host.


class Order(Message, frozen=True, kw_only=True):
    """To a host, or to our own: start ranks."""

    # On each host.
    ranks: Whole
    # What tells them of their devices.
    environment: dict[str, str]
    # The published candidate whose packages they need; each host has its own copy.
    home: str = ""
    nodes: Whole = 1
    node: Whole = 0
    # Where the ranks of several hosts meet.
    rendezvous: str = ""
    # The name of the launch; ranks say which one they belong to.
    launch: str

    def ranks_of(self, node: int) -> range:
        return range(node * self.ranks, (node + 1) * self.ranks)


class End(Message, frozen=True):
    """To a node: end what was ordered."""


class Tell(Message, frozen=True):
    """To a node: tell what is in the files of the ranks."""


class Bye(Message, frozen=True):
    """To a node: there will be no other order."""


class To(Message, frozen=True):
    """To a node: bytes for one of its ranks."""

    launch: str
    connection: Whole
    data: bytes


class Opened(Message, frozen=True):
    """From a node: a process has connected, as a rank does."""

    launch: str
    connection: Whole


class From(Message, frozen=True):
    """From a node: bytes from one of its ranks; none, if it has closed its end."""

    launch: str
    connection: Whole
    data: bytes


class Left(Message, frozen=True):
    """From a node: all that can be known on that host only."""

    texts = ("supervisor", "files", "ranks")

    launch: str
    # How it ended, if it has.
    supervisor: str
    # The ends of files, by name.
    files: dict[str, str]
    # How each rank ended that has, by its number.
    ranks: dict[str, str]


OfRank = Hello | Ready | Doing | Raised | Finished
ToRank = Mesh | Run | Probe
OfSupervisor = Up | Ended | Stopped
ToSupervisor = Start | Stop
OfNode = Opened | From | Left
ToNode = Order | End | Tell | Bye | To
