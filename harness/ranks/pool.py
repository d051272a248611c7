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
from harness.ranks.case_run import CaseRun
from harness.ranks.dispatcher import Deadlines
from harness.ranks.folder_pool import FolderPool
from harness.ranks.launch import Launch
from harness.ranks.other_hosts import OtherHosts
from harness.ranks.placement import DEADLINE, Placement
from harness.trace import Fault, Outcome
from harness.untrusted import BadInput

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
        nodes: OtherHosts | None = None,
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
        self._folder_pools = [self._new_folder_pool()]
        # What was submitted, in order, and whose ranks have it.
        self._order: deque[tuple[FolderPool, CaseRun]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> None:
        """Begin launching, without waiting; the first case does it otherwise."""
        self._folder_pools[0].start()

    def wait_until_ready(self) -> Fault | None:
        """Block until every rank is up, or say why one is not."""
        return self._wait(self._folder_pools[0], lambda: self.is_ready)

    def require_ready(self) -> None:
        """Block until every rank is up; raise `CannotStart` if one is not."""
        fault = self.wait_until_ready()
        if fault:
            raise CannotStart(fault)

    @property
    def launches(self) -> int:
        """How often ranks were started."""
        return sum(folder_pool.launches for folder_pool in self._folder_pools)

    @property
    def place(self) -> dict[str, str]:
        """Where ranks run, over what, and as far as one was ever up on which hardware."""
        place = {
            "device": self.device,
            "devices": ", ".join(self.placement.devices),
            "transport": self.transport,
            "ranks": str(self.size),
        }
        for folder_pool in self._folder_pools:
            place |= folder_pool.hardware
        return place

    @property
    def is_ready(self) -> bool:
        """Whether every rank is up."""
        return self._folder_pools[0].is_ready

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
        self._queue(CaseRun(case, candidate.full, candidate.folder, traced, oracle, learns))

    def load(self, candidate: Named) -> None:
        """Load its code, to say early what is wrong with it.

        That of a stranger only a rank loads. Nobody waits for it here: `collect` raises what is
        wrong in the place of the first outcome.
        """
        if not candidate.is_foreign:
            candidate.load()
            return
        name, folder = candidate.full, candidate.folder
        self._queue(CaseRun(ANY, name, folder, traced=False, loads=True, alone=True))

    def limits(self, candidate: Named) -> str:
        """What it supports of single fields, as it says itself; no case may be under way."""
        if not candidate.is_foreign:
            return getattr(candidate.load(), "limits", "")
        self.load(candidate)
        while self._order:
            case_run, _ = self._oldest()
        return case_run.limits

    def _oldest(self) -> tuple[CaseRun, Fault | None]:
        """What came of the oldest that is under way; nobody goes on whose code does not load."""
        folder_pool, case_run = self._order[0]
        fault = self._wait(folder_pool, lambda: case_run.complete)
        self._order.popleft()
        folder_pool.waiting.popleft()
        if case_run.loads:
            if fault or case_run.refusals:
                self._forget()
            if fault:
                raise CannotStart(fault)
            if case_run.refusals:
                here = f"{Path.cwd()}/"
                raise UnknownCandidate(case_run.refusals[0].replace(here, ""))
        return case_run, fault

    def collect(self) -> Outcome:
        """The outcome of the oldest case under way."""
        case_run, fault = self._oldest()
        if case_run.loads:
            return self.collect()
        return fault or case_run.outcome()

    def run(self, case: Case, candidate: Named, **asked: bool) -> Outcome:
        """Submit one case and wait for it; nothing else may be under way."""
        if any(not case_run.loads for _, case_run in self._order):
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
        self._end_each(FolderPool.close, RankPool.close)

    def kill(self) -> None:
        """End every process at once; cases under way will go to a fresh launch."""
        self._end_each(FolderPool.kill, RankPool.kill)

    def _end_each(
        self, end: Callable[[FolderPool], None], end_pool: Callable[["RankPool"], None]
    ) -> None:
        """All of them, also where one cannot be ended."""
        with ExitStack() as every:
            for pool in self._beside.values():
                every.callback(end_pool, pool)
            for folder_pool in self._folder_pools:
                every.callback(end, folder_pool)

    def pids(self) -> list[int]:
        """The supervisor, then its ranks in order; of each folder's."""
        launches = [
            folder_pool.dispatcher.launch
            for folder_pool in self._folder_pools
            if folder_pool.dispatcher
        ]
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
        dispatcher = self._folder_pools[0].dispatcher
        return dispatcher.launch.logs() if dispatcher else {}

    def _queue(self, case_run: CaseRun) -> None:
        folder_pool = self._serving(case_run.folder)
        folder_pool.waiting.append(case_run)
        self._order.append((folder_pool, case_run))
        folder_pool.start()

    def _serving(self, folder: str) -> FolderPool:
        """The ranks that serve this folder; those of another make room where there are many."""
        for folder_pool in self._folder_pools:
            if not folder or folder_pool.folder in ("", folder):
                folder_pool.folder = folder_pool.folder or folder
                return folder_pool
        idle = next((each for each in self._folder_pools if not each.waiting), None)
        if self._nodes and not idle:
            raise NotAtHome(
                f"candidate in {folder}: needs ranks of its own, and on several hosts all serve "
                f"{self._folder_pools[0].folder} at the moment; ask for candidates of one folder"
            )
        if idle and (self._nodes or len(self._folder_pools) >= MOST_FOLDERS):
            idle.close()
            # The last to be asked to make room again.
            self._folder_pools.remove(idle)
            self._folder_pools.append(idle)
        else:
            idle = self._new_folder_pool()
            self._folder_pools.append(idle)
        idle.folder = folder
        return idle

    def _new_folder_pool(self) -> FolderPool:
        def launch() -> Launch:
            return Launch(self.size, self.placement, self._nodes, self.home)

        return FolderPool(launch, self._runs, self.deadlines)

    def _forget(self) -> None:
        """Nobody will ask for what is under way."""
        self._order.clear()
        for folder_pool in self._folder_pools:
            busy = any(case_run.run for case_run in folder_pool.waiting)
            folder_pool.waiting.clear()
            if busy:
                folder_pool.kill()

    def _wait(self, folder_pool: FolderPool, until: Callable[[], bool]) -> Fault | None:
        try:
            return folder_pool.wait(until)
        except BaseException:
            # Ctrl-C, most likely: leave nothing behind, not even for the caller to close.
            self._forget()
            self.kill()
            raise
