"""Why there is no trace to judge."""

from dataclasses import dataclass, field
from enum import StrEnum

# Said of a rank that has entered a collective and has not left it.
WAITS = "waits in "


class Kind(StrEnum):
    """What went wrong, in one word."""

    START = "start"
    DIED = "died"
    RAISED = "raised"
    HUNG = "hung"
    LAUNCHER = "launcher"
    PROTOCOL = "protocol"
    STALE = "stale"
    FRAGMENT = "fragment"
    VACUOUS = "vacuous"
    OUT_OF_STEP = "out of step"
    REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A case that was not run, and why: the candidate refused it, or the ranks it was for."""

    reason: str
    # All that the candidate has, where the case is outside them.
    limits: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Never a pass: a crash, a hang, a lie, or a run in which nothing was examined."""

    kind: Kind
    summary: str
    rank: int | None = None
    last_key: str = ""
    # What each rank was doing, most telling line first.
    ranks: tuple[str, ...] = ()
    stacks: dict[int, str] = field(default_factory=dict)
    log: str = ""
    # By rank: the end of what it printed, and the last collectives that it entered.
    logs: dict[int, str] = field(default_factory=dict, repr=False)
    collectives: dict[int, tuple[str, ...]] = field(default_factory=dict, repr=False)
