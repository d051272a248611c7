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
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from harness.against import ITSELF, PLAIN, Against
from harness.candidates import locate
from harness.candidates.registry import UnknownCandidate
from harness.case import Case, parse
from harness.outside import BadInput
from harness.ranks.collectives import first_disagreement
from harness.ranks.crew import Crew, Deadlines
from harness.ranks.launch import Launch
from harness.ranks.nodes import Nodes
from harness.ranks.placement import DEADLINE, Placement
from harness.ranks.ticket import Ticket, disagreed
from harness.trace import Assembly, Fault, Outcome, Unsupported, assemble

# Of one rank, whatever the mesh.
ANY = parse("case/1 rows=1:1 sp=1")
START_DEADLINE = 180.0


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
        against: Against = PLAIN,
    ) -> None:
        self.size, self.placement, self.home = size, placement or Placement(), home
        self.device, self.transport = self.placement.device, self.placement.transport
        self.computes_on = self.placement.computes_on
        # Asked by whoever judges what these ranks do.
        self.against = against
        self.deadlines = Deadlines(deadline, start_deadline)
        self._nodes = nodes
        # By how many there are of each.
        self._beside: dict[int, RankPool] = {}
        self.launches = 0
        self._crew: Crew | None = None
        self._waiting: deque[Ticket] = deque()
        self._runs = itertools.count(1)
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
        if self._unable is None:
            self._begin()

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
            **(self._crew.launch.hardware if self._crew else {}),
        }

    @property
    def is_ready(self) -> bool:
        """Whether every rank is up."""
        return self._crew is not None and self._crew.is_ready

    def submit(
        self, case: Case, candidate: str, *, traced: bool = False, oracle: bool = False
    ) -> None:
        """Queue a case; ranks begin it as soon as they are free."""
        if case.ranks > self.size:
            raise TooFewRanks(
                f"sp*dp={case.sp}*{case.dp}: needs {case.ranks} ranks and the pool has "
                f"{self.size}; use a smaller mesh or more ranks"
            )
        needed = locate(candidate).home
        if needed not in ("", self.home):
            raise NotAtHome(
                f"candidate={candidate}: needs ranks that run in {needed}, and these run in "
                f"{self.home or 'the environment of the harness'}; use a pool of its own"
            )
        learns = self.against == ITSELF
        self._waiting.append(Ticket(case, candidate, traced, oracle, learns))
        self.start()
        if self._crew is not None:
            self._crew.feed()

    def load(self, candidate: str) -> None:
        """Load its code, to say early what is wrong with it.

        That of a stranger only a rank loads. Nobody waits for it here: `collect` raises what is
        wrong in the place of the first outcome.
        """
        named = locate(candidate)
        if not named.is_foreign:
            named.load()
            return
        candidate = named.full
        self._waiting.append(Ticket(ANY, candidate, traced=False, loads=True, alone=True))
        self.start()

    def collect(self) -> Outcome:
        """The outcome of the oldest case under way."""
        ticket = self._waiting[0]
        fault = self._wait(lambda: ticket.complete)
        self._waiting.popleft()
        if ticket.loads:
            if fault or ticket.refusals:
                # None of the others has been given to a rank.
                self._waiting.clear()
            if fault:
                raise CannotStart(fault)
            if ticket.refusals:
                here = f"{Path.cwd()}/"
                raise UnknownCandidate(ticket.refusals[0].replace(here, ""))
            return self.collect()
        if fault:
            return fault
        ranks = range(ticket.case.ranks)
        if len(ticket.refusals) == ticket.case.ranks:
            return Unsupported(ticket.refusals[0], ticket.limits)
        if ticket.refusals:
            trouble = disagreed(ticket.refusals)
            summary = f"rank {trouble.rank} {trouble.text}"
            return Fault(kind=trouble.kind, summary=summary, rank=trouble.rank)
        assembly = assemble(ticket.case, [ticket.fragments[rank] for rank in ranks])
        if isinstance(assembly, Assembly):
            assembly.sent = tuple(ticket.sent[rank] for rank in ranks)
            assembly.stood_in = ticket.stood_in
            assembly.unemitted = next(
                (f"on rank {rank} {text}" for rank, text in sorted(ticket.unemitted.items())), ""
            )
            assembly.out_of_step = first_disagreement(ticket.logs)
            assembly.idle = tuple(sorted(ticket.idle))
        return assembly

    def run(
        self, case: Case, candidate: str, *, traced: bool = False, oracle: bool = False
    ) -> Outcome:
        """Submit one case and wait for it; nothing else may be under way."""
        if any(not ticket.loads for ticket in self._waiting):
            raise RuntimeError("other cases are under way; use submit and collect")
        self.submit(case, candidate, traced=traced, oracle=oracle)
        return self.collect()

    @contextmanager
    def fresh(self, ranks: int) -> Iterator["RankPool"]:
        """Ranks that ran nothing yet; where there are several hosts, as many as these are."""
        if self._nodes:
            self.close()
            yield self
            return
        if not self.placement.on_cpu:
            # Devices may have no room for others beside these.
            self.close()
        with self._like_this(ranks) as pool:
            yield pool

    def beside(self, ranks: int) -> "RankPool":
        """So many ranks and no more, for as long as these are there; on this host alone."""
        if ranks not in self._beside:
            self._beside[ranks] = self._like_this(ranks)
        return self._beside[ranks]

    def _like_this(self, ranks: int) -> "RankPool":
        pool = RankPool(
            ranks,
            self.placement,
            home=self.home,
            deadline=self.deadlines.case,
            start_deadline=self.deadlines.start,
            against=self.against,
        )
        pool.computes_on = self.computes_on
        return pool

    def close(self) -> None:
        """Stop every rank. The pool can be used again; it then starts afresh."""
        launch = self._let_go()
        self._waiting.clear()
        self._failures_left, self._unable = 1, None
        try:
            if launch is not None:
                launch.kill()
        finally:
            for pool in self._beside.values():
                pool.close()

    def kill(self) -> None:
        """End every process at once; cases under way will go to a fresh launch."""
        launch = self._let_go()
        for ticket in self._waiting:
            ticket.take_back()
        try:
            if launch is not None:
                launch.kill()
        finally:
            for pool in self._beside.values():
                pool.kill()

    def _let_go(self) -> Launch | None:
        crew, self._crew = self._crew, None
        if crew is None:
            return None
        self._hardware |= crew.launch.hardware
        return crew.launch

    def pids(self) -> list[int]:
        """torchrun, then its ranks in order."""
        if self._crew is None:
            return []
        launch = self._crew.launch
        ranks = (launch.links[rank].pid for rank in sorted(launch.links))
        return [launch.torchrun.process.pid, *ranks]

    def logs(self) -> dict[int, str]:
        """The end of what each rank printed so far."""
        return self._crew.launch.logs() if self._crew else {}

    def _begin(self) -> Crew:
        """The ranks that are there, or those of a fresh launch."""
        if self._crew is None:
            launch = Launch(self.size, self.placement, self._nodes, self.home)
            self._crew = Crew(launch, self._waiting, self._runs, self.deadlines)
            self.launches += 1
        return self._crew

    def _wait(self, until: Callable[[], bool]) -> Fault | None:
        if self._unable is not None:
            return self._unable
        try:
            crew = self._begin()
            crew.feed()
            crew.listen()
            while not until():
                noticed = crew.troubles()
                if crew.is_ready:
                    # Who came up before may fail once: that may be a busy machine.
                    self._failures_left = 2
                if not noticed:
                    continue
                keys = crew.progress()
                troubles = crew.with_consequences(noticed)
                if crew.is_of_a_later_case(troubles[0]):
                    self.kill()
                    for ticket in self._waiting:
                        ticket.alone = True
                    crew = self._begin()
                    continue
                fault = crew.fault(troubles, keys)
                if not crew.is_ready:
                    self._failures_left -= 1
                    self._unable = None if self._failures_left else fault
                self.kill()
                return fault
        except BaseException:
            # Ctrl-C, most likely: leave nothing behind, not even for the caller to close.
            self._waiting.clear()
            self.kill()
            raise
        return None
