"""A case on its way through the ranks, and how their answers are taken in."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from harness.case import Case
from harness.ranks.fault_report import Incident
from harness.ranks.frames import ProtocolError
from harness.ranks.link import Event
from harness.ranks.messages import Doing, Finished, Raised, Ready
from harness.ranks.payload import unpack
from harness.trace import Assembly, Fault, Fragment, Kind, Outcome, Unsupported, assemble
from harness.watch.collectives import first_disagreement, one_by_one


@dataclass(slots=True)
class CaseRun:
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
    # By rank.
    finished: dict[int, Finished] = field(default_factory=dict)
    fragments: dict[int, Sequence[Fragment]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.fragments) == self.case.ranks

    def take_back(self) -> None:
        """As if no rank had ever had it."""
        self.run = 0
        self.finished.clear()
        self.fragments.clear()

    @property
    def refusals(self) -> dict[int, str]:
        """Why each rank did not run it that did not."""
        told = ((rank, each.refusal) for rank, each in sorted(self.finished.items()))
        return {rank: refusal for rank, refusal in told if refusal}

    @property
    def limits(self) -> str:
        """The limits of the candidate, if the case is outside them or nothing is run."""
        return next((each.limits for each in self.finished.values()), "")

    def outcome(self) -> Outcome:
        """What became of it, now that it is complete."""
        ranks, refusals = range(self.case.ranks), self.refusals
        if len(refusals) == len(ranks):
            return Unsupported(refusals[0], self.limits)
        if refusals:
            incident = disagreed(refusals)
            summary = f"rank {incident.rank} {incident.text}"
            return Fault(kind=incident.kind, summary=summary, rank=incident.rank)
        assembly = assemble(self.case, [self.fragments[rank] for rank in ranks])
        if isinstance(assembly, Assembly):
            told = {rank: self.finished[rank] for rank in ranks}
            assembly.sent = tuple(each.sent for each in told.values())
            assembly.idle = tuple(rank for rank, each in told.items() if each.idle)
            assembly.stood_in = tuple(told[0].stood_in)
            assembly.skipped += tuple(dict.fromkeys(k for e in told.values() for k in e.skipped))
            unemitted = (f"on rank {n} {e.unemitted}" for n, e in told.items() if e.unemitted)
            assembly.unemitted = next(unemitted, "")
            orders = one_by_one({rank: each.order for rank, each in told.items()})
            assembly.out_of_step = first_disagreement(orders)
        return assembly


def disagreed(refusals: dict[int, str]) -> Incident:
    """Some ranks refused a case, and others did not."""
    rank, reason = min(refusals.items())
    return Incident(Kind.RAISED, f"refuses the case, and not all others do: {reason}", rank)


def take_in(event: Event, waiting: Sequence[CaseRun], *, up: bool) -> Incident | None:
    """Put an answer where it belongs; a `Incident` if it is something else."""
    link, message = event.link, event.message
    if link is None:
        return Incident(Kind.LAUNCHER if up else Kind.START, event.broken, event.rank)
    if event.died:
        return Incident(Kind.DIED if link.ready else Kind.START, event.broken, event.rank)
    match message:
        case None:
            return _garbage(event, event.broken)
        case Ready():
            link.ready, link.hardware = True, message.hardware
        case Doing() if link.asked:
            # It comes when nobody waits for it any more.
            link.asked -= 1
        case Raised() | Finished():
            return _answer(event, message, waiting)
        case _:
            return _garbage(event, f"{type(message).__name__} was not asked for")
    return None


def _garbage(event: Event, what: str) -> Incident:
    return Incident(Kind.PROTOCOL, f"talks garbage: {what}", event.rank)


def _answer(
    event: Event, message: Raised | Finished, waiting: Sequence[CaseRun]
) -> Incident | None:
    rank, run = event.rank or 0, message.run
    case_run = next((t for t in waiting if t.run == run), None)
    if case_run is None or rank >= case_run.case.ranks:
        runs = ", ".join(str(t.run) for t in waiting if t.run) or "none"
        return Incident(Kind.STALE, f"answered for run {run}; under way: {runs}", rank)
    if rank in case_run.fragments:
        return Incident(Kind.STALE, f"answered for run {run} once more", rank)
    if isinstance(message, Raised):
        # CUDA's have several lines.
        text = f"raised {' '.join(message.error.split())}"
        return Incident(
            Kind.RAISED, text, rank, run=run, moment=message.moment, stack=message.stack
        )
    try:
        case_run.fragments[rank] = unpack(message.pieces, message.tensors)
    except ProtocolError as error:
        return _garbage(event, str(error))
    # Their bytes are in the fragments.
    case_run.finished[rank] = replace(message, tensors=b"")
    return None
