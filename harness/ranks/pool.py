"""The rank pool: cases in, fragments or faults out, in the order they were submitted.

1. The first case starts `torchrun`; ranks connect back and stay.
2. `submit` sends a case to the ranks it needs. Several may be under way; ranks take them in turn.
3. `collect` waits for the oldest, on all sockets and on torchrun at once, with a deadline.
4. A dead rank, an exception, a hang, garbage or a stale run id is a `Fault`. The launch is then
   killed, never tidied; cases that waited behind the faulty one go to a fresh launch.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from harness.case import Case
from harness.ranks.autopsy import Trouble, autopsy
from harness.ranks.launch import Event, Launch
from harness.ranks.payload import unpack
from harness.ranks.wire import Frame, ProtocolError, encode
from harness.trace import Assembly, Fault, Fragment, Kind, assemble

DEADLINE = 20.0
START_DEADLINE = 180.0
# One rank's trouble becomes its peers' within moments: wait for theirs, then name the first.
GRACE = 0.3


class TooFewRanks(ValueError):
    """The case needs more ranks than the pool has."""


@dataclass(slots=True)
class Ticket:
    """A case on its way through the ranks."""

    case: Case
    candidate: str
    traced: bool
    run: int = 0
    fragments: dict[int, Sequence[Fragment]] = field(default_factory=dict)
    # What rank 0 entered, by kind.
    collectives: dict[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.fragments) == self.case.ranks


class RankPool:
    """`size` ranks that serve every (dp, sp) with dp * sp <= size."""

    def __init__(
        self,
        size: int,
        *,
        device: str = "cpu",
        transport: str = "gloo",
        deadline: float = DEADLINE,
        start_deadline: float = START_DEADLINE,
    ) -> None:
        self.size, self.device, self.transport = size, device, transport
        self.deadline, self.start_deadline = deadline, start_deadline
        self.launches = 0
        self._launch: Launch | None = None
        self._waiting: deque[Ticket] = deque()
        self._runs = itertools.count(1)
        # Since when the oldest case, or the launch itself, has been keeping us waiting.
        self._since = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> None:
        """Begin launching, without waiting; the first case does it otherwise."""
        if self._launch is None:
            self._launch = Launch(self.size, device=self.device, transport=self.transport)
            self.launches += 1
            self._since = time.monotonic()

    def wait_until_ready(self) -> Fault | None:
        """Block until every rank is up, or say why one is not."""
        return self._wait(lambda: self.is_ready)

    @property
    def is_ready(self) -> bool:
        """Whether every rank is up."""
        links = self._launch.links if self._launch else {}
        return len(links) == self.size and all(link.ready for link in links.values())

    def submit(self, case: Case, candidate: str, *, traced: bool = False) -> None:
        """Queue a case; ranks begin it as soon as they are free."""
        if case.ranks > self.size:
            raise TooFewRanks(
                f"sp*dp={case.sp}*{case.dp}: needs {case.ranks} ranks and the pool has "
                f"{self.size}; use a smaller mesh or more ranks"
            )
        ticket = Ticket(case, candidate, traced)
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append(ticket)
        if self.is_ready:
            self._dispatch(ticket)
        else:
            self.start()

    def collect(self) -> Assembly | Fault:
        """The outcome of the oldest case under way."""
        ticket = self._waiting[0]
        fault = self._wait(lambda: ticket.complete)
        self._waiting.popleft()
        self._since = time.monotonic()
        if fault:
            return fault
        ranks = range(ticket.case.ranks)
        assembly = assemble(ticket.case, [ticket.fragments[rank] for rank in ranks])
        if isinstance(assembly, Assembly):
            assembly.collectives = ticket.collectives
        return assembly

    def run(self, case: Case, candidate: str, *, traced: bool = False) -> Assembly | Fault:
        """Submit one case and wait for it; nothing else may be under way."""
        if self._waiting:
            raise RuntimeError("other cases are under way; use submit and collect")
        self.submit(case, candidate, traced=traced)
        return self.collect()

    def close(self) -> None:
        """Stop every rank. The pool can be used again; it then starts afresh."""
        launch, self._launch = self._launch, None
        self._waiting.clear()
        if launch is not None:
            launch.stop()

    def kill(self) -> None:
        """End every process at once; cases under way will go to a fresh launch."""
        launch, self._launch = self._launch, None
        for ticket in self._waiting:
            ticket.fragments.clear()
        if launch is not None:
            launch.kill()

    def pids(self) -> list[int]:
        """torchrun, then its ranks in order."""
        if self._launch is None:
            return []
        links = self._launch.links
        return [self._launch.process.pid, *(links[rank].pid for rank in sorted(links))]

    def _dispatch(self, ticket: Ticket) -> None:
        assert self._launch is not None
        ticket.run = next(self._runs)
        frame = encode(
            "run",
            run=ticket.run,
            case=str(ticket.case),
            candidate=ticket.candidate,
            traced=ticket.traced,
        )
        mesh = (ticket.case.dp, ticket.case.sp)
        if mesh not in self._launch.meshes:
            self._launch.meshes.add(mesh)
            self._send(range(self.size), encode("mesh", dp=mesh[0], sp=mesh[1]))
        self._send(range(ticket.case.ranks), frame)

    def _send(self, ranks: range, frame: bytes) -> None:
        assert self._launch is not None
        # A socket that does not take it belongs to a rank whose end is about to be noticed.
        for rank in ranks:
            self._launch.send(rank, frame)

    def _wait(self, until: Callable[[], bool]) -> Fault | None:
        try:
            self.start()
            while not until():
                trouble = self._next_trouble()
                if trouble:
                    fault = self._investigate(trouble)
                    self.kill()
                    return fault
            return None
        except BaseException:
            # Ctrl-C, most likely: leave nothing behind, not even for the caller to close.
            self._waiting.clear()
            self.kill()
            raise

    def _next_trouble(self) -> Trouble | None:
        assert self._launch is not None
        was_ready = self.is_ready
        allowed = self.deadline if was_ready else self.start_deadline
        left = self._since + allowed - time.monotonic()
        events = self._launch.events(left)
        for event in events:
            trouble = self._handle(event)
            if trouble:
                return trouble
        if self.is_ready and not was_ready:
            self._since = time.monotonic()
            for ticket in self._waiting:
                self._dispatch(ticket)
        if events or left > 0:
            return None
        if not was_ready:
            return Trouble(Kind.START, f"not all ranks were up within {allowed:g} s")
        return Trouble(Kind.HUNG, f"no answer within {allowed:g} s")

    def _handle(self, event: Event) -> Trouble | None:
        """Take in one event; a `Trouble` if it is one."""
        link, frame = event.link, event.frame
        if link is None:
            kind = Kind.LAUNCHER if self.is_ready else Kind.START
            return Trouble(kind, event.broken)
        if frame is None:
            if event.broken == "closed":
                return Trouble(Kind.DIED if link.ready else Kind.START, "died", event.rank)
            return Trouble(Kind.PROTOCOL, event.broken, event.rank)
        try:
            return self._take(event.rank or 0, frame, event)
        except ProtocolError as error:
            return Trouble(Kind.PROTOCOL, str(error), event.rank)

    def _take(self, rank: int, frame: Frame, event: Event) -> Trouble | None:
        if frame.kind == "ready" and event.link:
            event.link.ready = True
            return None
        if frame.kind not in ("finished", "raised"):
            raise ProtocolError(f"a frame of kind {frame.kind!r} was not asked for")
        run = frame.whole("run")
        ticket = next((t for t in self._waiting if t.run == run), None)
        if ticket is None or rank >= ticket.case.ranks or rank in ticket.fragments:
            runs = ", ".join(str(t.run) for t in self._waiting)
            return Trouble(Kind.STALE, f"answered for run {run}, under way: {runs}", rank)
        if frame.kind == "raised":
            return Trouble(
                Kind.RAISED,
                f"raised {frame.text('error')}",
                rank,
                moment=float(frame.header.get("moment", 0)),
                stack=frame.text("stack"),
            )
        ticket.fragments[rank] = unpack(frame.header.get("fragments"), frame.payload)
        if rank == 0:
            ticket.collectives = _counts(frame.header.get("collectives"))
        return None

    def _investigate(self, first: Trouble) -> Fault:
        assert self._launch is not None
        troubles, until = [first], time.monotonic() + GRACE
        while (left := until - time.monotonic()) > 0:
            for event in self._launch.events(left):
                trouble = self._handle(event)
                if trouble:
                    troubles.append(trouble)
        root = min(troubles, key=lambda trouble: trouble.rank_of_blame)
        ticket = self._waiting[0] if self._waiting else None
        finished = sorted(ticket.fragments) if ticket else []
        return autopsy(
            self._launch, root, needed=ticket.case.ranks if ticket else 0, finished=finished
        )


def _counts(described: object) -> dict[str, int]:
    if not isinstance(described, dict) or not all(
        isinstance(kind, str) and type(count) is int for kind, count in described.items()
    ):
        raise ProtocolError("collectives are not counts by kind")
    return described
