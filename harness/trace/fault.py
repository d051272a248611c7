"""The two reasons why a run has no trace to judge: a fault, or a refusal."""

from dataclasses import dataclass, field
from enum import StrEnum

# Starts the description of a rank that has entered a collective and has not left it.
WAITS = "waits in "


class Kind(StrEnum):
    """The kind of a fault, as messages and documents spell it."""

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
    """A case that was not run, because the candidate or the pool of ranks refused it."""

    reason: str
    # All limits of the candidate if the case violates one of them, or else nothing.
    limits: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A run without a usable result: it crashed, hung, broke the protocol or examined nothing."""

    kind: Kind
    summary: str
    rank: int | None = None
    last_key: str = ""
    # What each rank was doing, the most informative line first.
    ranks: tuple[str, ...] = ()
    stacks: dict[int, str] = field(default_factory=dict)
    log: str = ""
    # By rank: the end of its output, and the last collectives that it entered.
    logs: dict[int, str] = field(default_factory=dict, repr=False)
    collectives: dict[int, tuple[str, ...]] = field(default_factory=dict, repr=False)
