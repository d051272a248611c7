"""A case on its way through the ranks, and how their answers are taken in."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.case import Case
from harness.ranks.collectives import Collective, heard
from harness.ranks.link import Event
from harness.ranks.order import Run
from harness.ranks.payload import unpack
from harness.ranks.trouble import Trouble
from harness.ranks.wire import Frame, ProtocolError
from harness.trace import Fragment, Kind


@dataclass(slots=True)
class Ticket:
    """One case, and what came back so far."""

    case: Case
    candidate: str
    # What its ranks import from first.
    folder: str
    traced: bool
    # It is what another case is compared with, in fp64 whatever the candidate's limits are.
    oracle: bool = False
    # Ranks say, too, what learned and was not emitted: nothing else knows all that has gradients.
    learns: bool = False
    # Nothing is run: the code of the candidate is loaded, to say early what is wrong with it.
    loads: bool = False
    # No other may be under way beside it.
    alone: bool = False
    # Zero until the ranks have it.
    run: int = 0
    fragments: dict[int, Sequence[Fragment]] = field(default_factory=dict)
    # Bytes that each rank sent to others; nothing where it could not tell.
    sent: dict[int, int | None] = field(default_factory=dict)
    # Ranks whose log of collectives was too short to tell all of it.
    forgot: set[int] = field(default_factory=set)
    # What learned on a rank and was not emitted.
    unemitted: dict[int, str] = field(default_factory=dict)
    # What rank 0 has a stand-in for.
    stood_in: tuple[str, ...] = ()
    # Keys of what ranks emitted and did not send.
    skipped: dict[str, None] = field(default_factory=dict)
    # Why each rank did not run it that did not.
    refusals: dict[int, str] = field(default_factory=dict)
    # Those of the candidate, where the case is outside them or nothing is run.
    limits: str = ""
    # Ranks on a device on which they computed nothing.
    idle: set[int] = field(default_factory=set)
    # What each rank entered of its own accord, in short.
    orders: dict[int, list[Run]] = field(default_factory=dict)
    # All that each rank entered, one by one, where it is traced.
    logs: dict[int, list[Collective]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.fragments) == self.case.ranks

    def take_back(self) -> None:
        """As if no rank had ever had it."""
        self.run = 0
        self.fragments.clear()
        self.refusals.clear()
        self.idle.clear()
        self.forgot.clear()
        self.unemitted.clear()
        self.orders.clear()
        self.logs.clear()


def disagreed(refusals: dict[int, str]) -> Trouble:
    """Some ranks refused a case, and others did not."""
    rank, reason = min(refusals.items())
    return Trouble(Kind.RAISED, f"refuses the case, and not all others do: {reason}", rank)


def take_in(event: Event, waiting: Sequence[Ticket], *, up: bool) -> Trouble | None:
    """Put an answer where it belongs; a `Trouble` if it is something else."""
    link, frame = event.link, event.frame
    if link is None:
        return Trouble(Kind.LAUNCHER if up else Kind.START, event.broken, event.rank)
    if event.died:
        return Trouble(Kind.DIED if link.ready else Kind.START, event.broken, event.rank)
    if frame is None:
        return Trouble(Kind.PROTOCOL, f"talks garbage: {event.broken}", event.rank)
    try:
        if frame.kind == "ready":
            link.ready, link.hardware = True, frame.texts("hardware")
        elif frame.kind == "report" and link.asked:
            # It comes when nobody waits for it any more.
            link.asked -= 1
        else:
            return _answer(event.rank or 0, frame, waiting)
    except ProtocolError as error:
        return Trouble(Kind.PROTOCOL, f"talks garbage: {error}", event.rank)
    return None


def _answer(rank: int, frame: Frame, waiting: Sequence[Ticket]) -> Trouble | None:
    if frame.kind not in ("finished", "raised"):
        raise ProtocolError(f"a frame of kind {frame.kind!r} was not asked for")
    run = frame.whole("run")
    ticket = next((t for t in waiting if t.run == run), None)
    if ticket is None or rank >= ticket.case.ranks:
        runs = ", ".join(str(t.run) for t in waiting if t.run) or "none"
        return Trouble(Kind.STALE, f"answered for run {run}; under way: {runs}", rank)
    if rank in ticket.fragments:
        return Trouble(Kind.STALE, f"answered for run {run} once more", rank)
    if frame.kind == "raised":
        return Trouble(
            Kind.RAISED,
            f"raised {frame.text('error')}",
            rank,
            run=run,
            moment=frame.whole("moment"),
            stack=frame.text("stack"),
        )
    _keep(rank, frame, ticket)
    return None


def _keep(rank: int, frame: Frame, ticket: Ticket) -> None:
    """All that a rank tells of a run that ended well."""
    log, order = _log(frame.header.get("log", [])), _order(frame.header.get("order", []))
    ticket.fragments[rank] = unpack(frame.header.get("fragments"), frame.payload)
    ticket.limits = frame.text("limits")
    if refusal := frame.text("refusal"):
        ticket.refusals[rank] = refusal
    for name, ranks in (("idle", ticket.idle), ("forgot", ticket.forgot)):
        if frame.header.get(name) is True:
            ranks.add(rank)
    ticket.sent[rank] = None if frame.header.get("sent") is None else frame.whole("sent")
    if unemitted := frame.text("unemitted"):
        ticket.unemitted[rank] = unemitted
    ticket.skipped |= dict.fromkeys(_names(frame.header.get("skipped", [])))
    if rank == 0:
        ticket.stood_in = _names(frame.header.get("stood_in", []))
    ticket.orders[rank] = order
    if ticket.traced:
        ticket.logs[rank] = log


def _names(described: object) -> tuple[str, ...]:
    if not isinstance(described, list) or not all(isinstance(name, str) for name in described):
        raise ProtocolError("what is stood in for, or was not sent, is no list of names")
    return tuple(described)


def _order(described: Any) -> list[Run]:
    try:
        return [(str(group), str(kind), int(count)) for group, kind, count in described]
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"the order of collectives is none: {error}") from None


def _log(described: object) -> list[Collective]:
    try:
        return heard(described)
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"the log of collectives is none: {error}") from None
