"""The rank pool: cases in, fragments or faults out, in the order they were submitted.

1. The first case starts `torchrun`; ranks connect back and stay.
2. `submit` sends a case to the ranks it needs. Several may be under way; ranks take them in turn.
3. `collect` waits for the oldest, on all sockets and on torchrun at once, with a deadline.
4. A dead rank, an exception, a hang, garbage or a stale run id is a `Fault`. The launch is then
   killed, never tidied; cases that waited behind the faulty one go to a fresh launch.
5. What happens to an idle rank is a fault of the next case: nothing may go wrong unseen.
6. A rank that is done with the oldest case may fail in a later one before its peers are done.
   The oldest is then not to blame: a fresh launch takes all of them again, one at a time.
7. Ranks that do not come up at all are told once: every case behind has the same fault, at once.
8. A rank that still imports a library when its time is up is starting, and may take as long.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import Self

from harness.candidates import home
from harness.case import Case
from harness.ranks.autopsy import autopsy
from harness.ranks.collectives import first_disagreement
from harness.ranks.launch import Launch
from harness.ranks.link import Event
from harness.ranks.nodes import Nodes
from harness.ranks.placement import Placement
from harness.ranks.reports import ask
from harness.ranks.ticket import Ticket, take_in
from harness.ranks.trouble import Trouble
from harness.ranks.wire import encode
from harness.refusal import BadInput
from harness.trace import Assembly, Fault, Kind, assemble

DEADLINE = 20.0
START_DEADLINE = 180.0
# One rank's trouble becomes its peers' within moments: wait for theirs, then name the first.
GRACE, LONGEST_GRACE, POLL = 0.3, 2.0, 0.02
# How long those who are late get to say that they still import.
ASKING = 1.0


class TooFewRanks(BadInput):
    """The case needs more ranks than the pool has."""


class NotAtHome(BadInput):
    """The candidate needs ranks that run in an environment of its own."""


class CannotStart(RuntimeError):
    """Ranks do not come up, whatever they are asked; the fault says why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.summary)
        self.fault = fault


class RankPool:
    """`size` ranks that serve every (dp, sp) with dp * sp <= size.

    A published candidate needs ranks in its own environment: those of a pool with its `home`.
    """

    def __init__(
        self,
        size: int,
        placement: Placement | None = None,
        *,
        home: str = "",
        nodes: Nodes | None = None,
        deadline: float = DEADLINE,
        start_deadline: float = START_DEADLINE,
    ) -> None:
        self.size, self.placement, self.home = size, placement or Placement(), home
        self.device, self.transport = self.placement.device, self.placement.transport
        self.computes_on = self.placement.computes_on
        self.deadline, self.start_deadline = deadline, start_deadline
        self._nodes = nodes
        self.launches = 0
        self._launch: Launch | None = None
        self._waiting: deque[Ticket] = deque()
        self._runs = itertools.count(1)
        # Since when we have been waiting for the launch, or for the oldest case.
        self._since = 0.0
        # The same, but for what was added because something was still on its way up.
        self._begun = 0.0
        self._one_by_one = False
        # How often they may still fail to come up, and the fault of the last time. It is told of
        # every case from then on: the next start would fail as well, after as long.
        self._failures_left = 1
        self._unable: Fault | None = None
        # What ranks said of it that are gone.
        self._hardware: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
        if self._nodes:
            self._nodes.close()

    def start(self) -> None:
        """Begin launching, without waiting; the first case does it otherwise."""
        if self._launch is None and self._unable is None:
            self._launch = Launch(self.size, self.placement, self._nodes, self.home)
            self.launches += 1

    def wait_until_ready(self) -> Fault | None:
        """Block until every rank is up, or say why one is not."""
        return self._wait(lambda: self.is_ready)

    def require_ready(self) -> None:
        """The same, for those who can say nothing without ranks: `CannotStart` if one is not."""
        fault = self.wait_until_ready()
        if fault:
            raise CannotStart(fault)

    @property
    def place(self) -> dict[str, str]:
        """Where ranks run, over what, and as far as one was ever up on which hardware."""
        return {
            "device": self.device,
            "devices": ", ".join(self.placement.devices),
            "transport": self.transport,
            "ranks": str(self.size),
            **self._hardware,
            **(self._launch.hardware if self._launch else {}),
        }

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
        needed = home(candidate)
        if needed not in ("", self.home):
            raise NotAtHome(
                f"candidate={candidate}: needs ranks that run in {needed}, and these run in "
                f"{self.home or 'the environment of the harness'}; use a pool of its own"
            )
        self._waiting.append(Ticket(case, candidate, traced))
        self.start()
        self._feed()

    def collect(self) -> Assembly | Fault:
        """The outcome of the oldest case under way."""
        ticket = self._waiting[0]
        fault = self._wait(lambda: ticket.complete)
        self._waiting.popleft()
        self._one_by_one = self._one_by_one and bool(self._waiting)
        if fault:
            return fault
        ranks = range(ticket.case.ranks)
        assembly = assemble(ticket.case, [ticket.fragments[rank] for rank in ranks])
        if isinstance(assembly, Assembly):
            assembly.collectives, assembly.stood_in = ticket.collectives, ticket.stood_in
            assembly.out_of_step = first_disagreement(ticket.logs)
            assembly.idle = tuple(sorted(ticket.idle))
        return assembly

    def run(self, case: Case, candidate: str, *, traced: bool = False) -> Assembly | Fault:
        """Submit one case and wait for it; nothing else may be under way."""
        if self._waiting:
            raise RuntimeError("other cases are under way; use submit and collect")
        self.submit(case, candidate, traced=traced)
        return self.collect()

    def close(self) -> None:
        """Stop every rank. The pool can be used again; it then starts afresh."""
        launch = self._let_go()
        self._waiting.clear()
        self._failures_left, self._unable = 1, None
        if launch is not None:
            launch.kill()

    def kill(self) -> None:
        """End every process at once; cases under way will go to a fresh launch."""
        launch = self._let_go()
        for ticket in self._waiting:
            ticket.take_back()
        if launch is not None:
            launch.kill()

    def _let_go(self) -> Launch | None:
        launch, self._launch = self._launch, None
        if launch is not None:
            self._hardware |= launch.hardware
        return launch

    def pids(self) -> list[int]:
        """torchrun, then its ranks in order."""
        if self._launch is None:
            return []
        links = self._launch.links
        return [self._launch.torchrun.process.pid, *(links[rank].pid for rank in sorted(links))]

    def logs(self) -> dict[int, str]:
        """The end of what each rank printed so far."""
        return self._launch.logs() if self._launch else {}

    def _feed(self) -> None:
        """Give the ranks, once they are up, all that they may have in hand."""
        if self.is_ready:
            for ticket in itertools.islice(self._waiting, 1 if self._one_by_one else None):
                if not ticket.run:
                    self._dispatch(ticket)

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
            self._begin()
            while self._unable is None and not until():
                assert self._launch is not None
                found = self._new_troubles()
                if not found:
                    continue
                keys = [self._launch.progress(rank) for rank in range(self.size)]
                troubles = self._troubles(found)
                if self._is_of_a_later_case(troubles[0]):
                    self.kill()
                    self._one_by_one = True
                    self._begin()
                    continue
                fault = self._fault(troubles, keys)
                if not self.is_ready:
                    self._failures_left -= 1
                    self._unable = None if self._failures_left else fault
                self.kill()
                return fault
            return self._unable
        except BaseException:
            # Ctrl-C, most likely: leave nothing behind, not even for the caller to close.
            self._waiting.clear()
            self.kill()
            raise

    def _begin(self) -> None:
        self.start()
        self._feed()
        # Not since the case was submitted: while nobody listened, no rank could be heard.
        self._since = self._begun = time.monotonic()

    def _new_troubles(self) -> list[Trouble]:
        """What comes next; of what comes at once, nothing comes a second time."""
        assert self._launch is not None
        was_ready = self.is_ready
        allowed = self.deadline if was_ready else self.start_deadline
        left = self._since + allowed - time.monotonic()
        troubles = self._take_in(self._launch.events(left))
        if troubles:
            return troubles
        if left > 0:
            if self.is_ready and not was_ready:
                # Who came up before may fail once: that may be a busy machine.
                self._failures_left = 2
                self._feed()
                self._since = self._begun = time.monotonic()
            return []
        if not was_ready:
            text = f"not all ranks were up within {allowed:g} s: {self._launch.missing()}"
            return [Trouble(Kind.START, text, late=True)]
        return self._late()

    def _late(self) -> list[Trouble]:
        """Whoever still imports is on its way up, and has the time for that; others are stuck."""
        assert self._launch is not None
        reports, events = ask(self._launch, ASKING)
        troubles, ticket = self._take_in(events), self._waiting[0]
        if troubles or ticket.complete:
            return troubles
        importing = {
            rank: reports[rank].importing
            for rank in range(ticket.case.ranks)
            if rank in reports and reports[rank].importing
        }
        if not importing:
            return [Trouble(Kind.HUNG, f"gave no answer within {self.deadline:g} s", late=True)]
        if time.monotonic() - self._begun < self.start_deadline:
            self._since = time.monotonic()
            return []
        rank, module = min(importing.items())
        text = f"still imported {module} after {self.start_deadline:g} s"
        return [Trouble(Kind.START, text, rank, late=True)]

    def _take_in(self, events: list[Event]) -> list[Trouble]:
        taken = [take_in(event, self._waiting, up=self.is_ready) for event in events]
        return [trouble for trouble in taken if trouble]

    def _troubles(self, first: list[Trouble]) -> list[Trouble]:
        """The cause of what went wrong, and then its consequences."""
        assert self._launch is not None
        troubles, started = list(first), time.monotonic()
        while (passed := time.monotonic() - started) < self._patience():
            troubles += self._take_in(self._launch.events(max(GRACE - passed, POLL)))
        return sorted(troubles, key=lambda trouble: trouble.rank_of_blame)

    def _patience(self) -> float:
        assert self._launch is not None
        # A process that ends may take its peers' sockets away long before it lets go of ours.
        ending = any(link.is_ending() for link in self._launch.links.values())
        return LONGEST_GRACE if ending else GRACE

    def _is_of_a_later_case(self, root: Trouble) -> bool:
        if sum(ticket.run > 0 for ticket in self._waiting) < 2 or root.rank is None:
            return False
        oldest = self._waiting[0]
        return (
            root.rank >= oldest.case.ranks
            or root.rank in oldest.fragments
            or root.run not in (None, oldest.run)
        )

    def _fault(self, troubles: list[Trouble], keys: list[str]) -> Fault:
        assert self._launch is not None
        ticket = self._waiting[0] if self._waiting else None
        needed, finished = (ticket.case.ranks, sorted(ticket.fragments)) if ticket else (0, [])
        return autopsy(self._launch, troubles, keys=keys, needed=needed, finished=finished)
