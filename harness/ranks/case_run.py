"""A case on its way through the ranks, and what their answers and other events make of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from harness.case import Case
from harness.ranks.fault_report import Incident
from harness.trace import Assembly, Fault, Fragment, Kind, Outcome, Unsupported, assemble
from harness.watch.collectives import expand_orders, first_disagreement
from harness.wire.frames import ProtocolError
from harness.wire.link import Event
from harness.wire.messages import Activity, Finished, Raised, Ready
from harness.wire.payload import unpack


@dataclass(slots=True)
class CaseRun:
    """One case for one candidate, and the answers of its ranks so far."""

    case: Case
    candidate: str
    # The folder from which its ranks import first.
    folder: str
    traced: bool
    # Modules that it imports and that take long.
    slow_imports: Sequence[str] = ()
    # Whether another case is compared with it: then it runs in fp64 whatever the limits are.
    oracle: bool = False
    # Whether ranks also report parameters that have gradients and were not emitted. Where there
    # is no plain training of the model, only ranks know which have.
    learns: bool = False
    # Whether ranks only load the candidate, so that its mistakes show early.
    is_load_only: bool = False
    # Whether no other case may be under way meanwhile.
    is_exclusive: bool = False
    # The variant of plain training that one rank runs, of a recipe, or of a step with one; "" for
    # a step itself.
    plain: str = ""
    # Whether the step computes in fp64 throughout, as plain training of a recipe does.
    exactly: bool = False
    # The number under which the ranks know it; 0 until they have it.
    run: int = 0
    # By rank.
    finished: dict[int, Finished] = field(default_factory=dict)
    fragments: dict[int, Sequence[Fragment]] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return len(self.fragments) == self.ranks

    @property
    def ranks(self) -> int:
        """How many ranks run it."""
        replicas, ranks_of_each = self.mesh
        return replicas * ranks_of_each

    @property
    def mesh(self) -> tuple[int, int]:
        """The (dp, sp) of the ranks that run it."""
        return (1, 1) if self.plain else (self.case.dp, self.case.sp)

    @property
    def hypotheses(self) -> list[str]:
        """What its recipe says can be wrong with the candidate, if that was only loaded."""
        return next((answer.hypotheses for answer in self.finished.values()), [])

    def take_back(self) -> None:
        """Forget that ranks ever had it."""
        self.run = 0
        self.finished.clear()
        self.fragments.clear()

    @property
    def refusals(self) -> dict[int, str]:
        """The reason of each rank that did not run it."""
        reasons = ((rank, answer.refusal) for rank, answer in sorted(self.finished.items()))
        return {rank: refusal for rank, refusal in reasons if refusal}

    @property
    def limits(self) -> str:
        """The candidate's limits, if the case is outside them or is only to load it."""
        return next((answer.limits for answer in self.finished.values()), "")

    def outcome(self) -> Outcome:
        """Return the outcome of a complete run."""
        ranks, refusals = range(self.ranks), self.refusals
        if len(refusals) == len(ranks):
            return Unsupported(refusals[0], self.limits)
        if refusals:
            incident = refusal_incident(refusals)
            summary = f"rank {incident.rank} {incident.text}"
            return Fault(kind=incident.kind, summary=summary, rank=incident.rank)
        assembly = assemble(self.case, [self.fragments[rank] for rank in ranks])
        if isinstance(assembly, Assembly):
            answers = [self.finished[rank] for rank in ranks]
            assembly.sent = tuple(answer.sent for answer in answers)
            assembly.embedded = tuple(answer.embedded for answer in answers)
            assembly.idle = tuple(rank for rank in ranks if answers[rank].idle)
            assembly.stood_in = tuple(answers[0].stood_in)
            assembly.skipped += tuple(dict.fromkeys(key for a in answers for key in a.skipped))
            unemitted = (
                f"on rank {n} {a.unemitted}" for n, a in enumerate(answers) if a.unemitted
            )
            assembly.unemitted = next(unemitted, "")
            orders = expand_orders({rank: answers[rank].order for rank in ranks})
            assembly.out_of_step = first_disagreement(orders)
        return assembly


def refusal_incident(refusals: dict[int, str]) -> Incident:
    """Return the incident that some ranks refused a case and others did not."""
    rank, reason = min(refusals.items())
    return Incident(Kind.RAISED, f"refuses the case, and not all others do: {reason}", rank)


def take_in(event: Event, waiting: Sequence[CaseRun], *, is_ready: bool) -> Incident | None:
    """Put an answer into its run; return an `Incident` for what is no expected message.

    `is_ready` is whether every rank of the launch is ready.
    """
    link, message = event.link, event.message
    if link is None:
        return Incident(Kind.LAUNCHER if is_ready else Kind.START, event.problem, event.rank)
    if event.has_died:
        return Incident(Kind.DIED if link.is_ready else Kind.START, event.problem, event.rank)
    match message:
        case None:
            return _garbage(event, event.problem)
        case Ready():
            link.is_ready, link.hardware = True, message.hardware
        case Activity() if link.probes:
            # It came after the controller stopped waiting for it.
            link.probes -= 1
        case Raised() | Finished():
            return _take_in_answer(event, message, waiting)
        case _:
            return _garbage(event, f"{type(message).__name__} was not asked for")
    return None


def _garbage(event: Event, problem: str) -> Incident:
    return Incident(Kind.PROTOCOL, f"talks garbage: {problem}", event.rank)


def _take_in_answer(
    event: Event, message: Raised | Finished, waiting: Sequence[CaseRun]
) -> Incident | None:
    rank, run = event.rank or 0, message.run
    case_run = next((each for each in waiting if each.run == run), None)
    if case_run is None or rank >= case_run.ranks:
        runs = ", ".join(str(each.run) for each in waiting if each.run) or "none"
        return Incident(Kind.STALE, f"answered for run {run}; under way: {runs}", rank)
    if rank in case_run.fragments:
        return Incident(Kind.STALE, f"answered for run {run} once more", rank)
    if isinstance(message, Raised):
        # The text of a CUDA error has several lines.
        text = f"raised {' '.join(message.error.split())}"
        return Incident(
            Kind.RAISED, text, rank, run=run, moment=message.moment, stack=message.stack
        )
    try:
        case_run.fragments[rank] = unpack(message.pieces, message.tensors)
    except ProtocolError as error:
        return _garbage(event, str(error))
    # The fragments hold the tensors now.
    case_run.finished[rank] = replace(message, tensors=b"")
    return None
