"""The rank pool: cases in, fragments or faults out, in the order they were submitted.

1. The first case starts a supervisor and its ranks; they connect back and stay.
2. `submit` sends a case to the ranks it needs. Several may be under way; ranks take them in turn.
3. `collect` waits for the oldest, on all sockets and the supervisor at once, with a deadline.
4. A dead rank, an exception, a hang, garbage or a stale run id is a `Fault`. The launch is then
   killed, never tidied; cases that waited behind the faulty one go to a fresh launch.
5. What happens to an idle rank is a fault of the next case: nothing may go wrong unseen.
6. A rank that is done with the oldest case may fail in a later one before its peers are done.
   The oldest is then not to blame: a fresh launch takes all of them again, one at a time.
7. Ranks that do not come up at all are told once: every case behind has the same fault, at once.
8. A rank that still imports a library when its time is up is starting, and may take as long.
9. Candidates of two folders have ranks of their own: neither sees what the other imports.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from harness.candidates import Named
from harness.candidates.registry import UnknownCandidate
from harness.case import Case, parse
from harness.outside import BadInput
from harness.ranks.crew import Deadlines
from harness.ranks.launch import Launch
from harness.ranks.nodes import Nodes
from harness.ranks.placement import DEADLINE, Placement
from harness.ranks.station import Station
from harness.ranks.ticket import Ticket
from harness.trace import Fault, Outcome

# A case of one rank.
ANY = parse("case/1 rows=1:1 sp=1")
START_DEADLINE = 180.0
# Folders of which ranks stay up while nobody asks for them; each has as many as the pool.
MOST_FOLDERS = 4


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
        self.deadlines = Deadlines(deadline, start_deadline)
        self._nodes = nodes
        # By how many there are of each.
        self._beside: dict[int, RankPool] = {}
        self._runs = itertools.count(1)
        # The first serves whoever has no folder as well.
        self._stations = [self._new_station()]
        # What was submitted, in order, and whose ranks have it.
        self._order: deque[tuple[Station, Ticket]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> None:
        """Begin launching, without waiting; the first case does it otherwise."""
        self._stations[0].start()

    def wait_until_ready(self) -> Fault | None:
        """Block until every rank is up, or say why one is not."""
        return self._wait(self._stations[0], lambda: self.is_ready)

    def require_ready(self) -> None:
        """Block until every rank is up; raise `CannotStart` if one is not."""
        fault = self.wait_until_ready()
        if fault:
            raise CannotStart(fault)

    @property
    def launches(self) -> int:
        """How often ranks were started."""
        return sum(station.launches for station in self._stations)

    @property
    def place(self) -> dict[str, str]:
        """Where ranks run, over what, and as far as one was ever up on which hardware."""
        place = {
            "device": self.device,
            "devices": ", ".join(self.placement.devices),
            "transport": self.transport,
            "ranks": str(self.size),
        }
        for station in self._stations:
            place |= station.hardware
        return place

    @property
    def is_ready(self) -> bool:
        """Whether every rank is up."""
        return self._stations[0].is_ready

    def submit(
        self,
        case: Case,
        candidate: Named,
        *,
        traced: bool = False,
        oracle: bool = False,
        learns: bool = False,
    ) -> None:
        """Queue a case; ranks begin it as soon as they are free."""
        if case.ranks > self.size:
            raise TooFewRanks(
                f"sp*dp={case.sp}*{case.dp}: needs {case.ranks} ranks and the pool has "
                f"{self.size}; use a smaller mesh or more ranks"
            )
        needed = candidate.home
        if needed not in ("", self.home):
            raise NotAtHome(
                f"candidate={candidate.full}: needs ranks that run in {needed}, and these run in "
                f"{self.home or 'the environment of the harness'}; use a pool of its own"
            )
        self._queue(Ticket(case, candidate.full, candidate.folder, traced, oracle, learns))

    def load(self, candidate: Named) -> None:
        """Load its code, to say early what is wrong with it.

        That of a stranger only a rank loads. Nobody waits for it here: `collect` raises what is
        wrong in the place of the first outcome.
        """
        if not candidate.is_foreign:
            candidate.load()
            return
        name, folder = candidate.full, candidate.folder
        self._queue(Ticket(ANY, name, folder, traced=False, loads=True, alone=True))

    def limits(self, candidate: Named) -> str:
        """What it supports of single fields, as it says itself; no case may be under way."""
        if not candidate.is_foreign:
            return getattr(candidate.load(), "limits", "")
        self.load(candidate)
        while self._order:
            ticket, _ = self._oldest()
        return ticket.limits

    def _oldest(self) -> tuple[Ticket, Fault | None]:
        """What came of the oldest that is under way; nobody goes on whose code does not load."""
        station, ticket = self._order[0]
        fault = self._wait(station, lambda: ticket.complete)
        self._order.popleft()
        station.waiting.popleft()
        if ticket.loads:
            if fault or ticket.refusals:
                self._forget()
            if fault:
                raise CannotStart(fault)
            if ticket.refusals:
                here = f"{Path.cwd()}/"
                raise UnknownCandidate(ticket.refusals[0].replace(here, ""))
        return ticket, fault

    def collect(self) -> Outcome:
        """The outcome of the oldest case under way."""
        ticket, fault = self._oldest()
        if ticket.loads:
            return self.collect()
        return fault or ticket.outcome()

    def run(self, case: Case, candidate: Named, **asked: bool) -> Outcome:
        """Submit one case and wait for it; nothing else may be under way."""
        if any(not ticket.loads for _, ticket in self._order):
            raise RuntimeError("other cases are under way; use submit and collect")
        self.submit(case, candidate, **asked)
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
        )
        pool.computes_on = self.computes_on
        return pool

    def close(self) -> None:
        """Stop every rank. The pool can be used again; it then starts afresh."""
        self._order.clear()
        self._end_each(Station.close, RankPool.close)

    def kill(self) -> None:
        """End every process at once; cases under way will go to a fresh launch."""
        self._end_each(Station.kill, RankPool.kill)

    def _end_each(
        self, end: Callable[[Station], None], end_pool: Callable[["RankPool"], None]
    ) -> None:
        """All of them, also where one cannot be ended."""
        with ExitStack() as every:
            for pool in self._beside.values():
                every.callback(end_pool, pool)
            for station in self._stations:
                every.callback(end, station)

    def pids(self) -> list[int]:
        """The supervisor, then its ranks in order; of each folder's."""
        launches = [station.crew.launch for station in self._stations if station.crew]
        return [
            pid
            for launch in launches
            for pid in (
                launch.host.supervisor.process.pid,
                *(launch.links[rank].pid for rank in sorted(launch.links)),
            )
        ]

    def logs(self) -> dict[int, str]:
        """The end of what each rank printed so far."""
        crew = self._stations[0].crew
        return crew.launch.logs() if crew else {}

    def _queue(self, ticket: Ticket) -> None:
        station = self._serving(ticket.folder)
        station.waiting.append(ticket)
        self._order.append((station, ticket))
        station.start()

    def _serving(self, folder: str) -> Station:
        """The ranks that serve this folder; those of another make room where there are many."""
        for station in self._stations:
            if not folder or station.folder in ("", folder):
                station.folder = station.folder or folder
                return station
        idle = next((each for each in self._stations if not each.waiting), None)
        if self._nodes and not idle:
            raise NotAtHome(
                f"candidate in {folder}: needs ranks of its own, and on several hosts all serve "
                f"{self._stations[0].folder} at the moment; ask for candidates of one folder"
            )
        if idle and (self._nodes or len(self._stations) >= MOST_FOLDERS):
            idle.close()
            # The last to be asked to make room again.
            self._stations.remove(idle)
            self._stations.append(idle)
        else:
            idle = self._new_station()
            self._stations.append(idle)
        idle.folder = folder
        return idle

    def _new_station(self) -> Station:
        def launch() -> Launch:
            return Launch(self.size, self.placement, self._nodes, self.home)

        return Station(launch, self._runs, self.deadlines)

    def _forget(self) -> None:
        """Nobody will ask for what is under way."""
        self._order.clear()
        for station in self._stations:
            busy = any(ticket.run for ticket in station.waiting)
            station.waiting.clear()
            if busy:
                station.kill()

    def _wait(self, station: Station, until: Callable[[], bool]) -> Fault | None:
        try:
            return station.wait(until)
        except BaseException:
            # Ctrl-C, most likely: leave nothing behind, not even for the caller to close.
            self._forget()
            self.kill()
            raise
