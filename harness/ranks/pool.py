"""The rank pool: cases go in, fragments or faults come out, in the order of submission.

1. The first case starts a supervisor and its ranks; they connect and stay.
2. `submit` sends a case to the ranks that it needs. Several may be under way; ranks run them in
   turn.
3. `collect` waits for the oldest case, and returns its outcome or the fault of its ranks.

The docstring of this package explains what lies behind it, and why it is built like this.
"""

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from harness.candidates import Named
from harness.candidates.registry import UnknownCandidate
from harness.case import Case, parse
from harness.case.stated import spans_all_ranks
from harness.rank_program.placement import Placement
from harness.ranks.case_run import CaseRun
from harness.ranks.dispatcher import Deadlines
from harness.ranks.folder_pool import FolderPool
from harness.ranks.launch import Launch
from harness.trace import Fault, Outcome
from harness.untrusted import BadInput
from harness.worlds.other_hosts import OtherHosts

ONE_RANK_CASE = parse("case/1 rows=1:1 sp=1")
# Seconds that a case may take, and that a start may take.
DEADLINE, START_DEADLINE = 20.0, 180.0
# The most sets of ranks that stay up: each folder has one as large as the pool, and smaller ones
# for steps that take all ranks there are.
MOST_SETS = 4


class TooFewRanks(BadInput):
    """The case needs more ranks than the pool has."""


class NeedsOtherRanks(BadInput):
    """The candidate needs ranks of its own: in another environment, or for another folder."""


class CannotStart(RuntimeError):
    """Ranks do not start, or cannot load the candidate; `fault` has the reason."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.summary)
        self.fault = fault


class RankPool:
    """`size` ranks that serve every (dp, sp) with dp * sp <= size.

    A published candidate needs ranks in its own environment: those of a pool with its `home`.
    Plain training of a recipe has no part in what a library replaces in its process, nor in its
    release of transformers. So there it has one rank, in the harness's own environment.
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
        self._runs = itertools.count(1)
        # By name of a foreign candidate, or of a recipe: its limits, and its recipe's hypotheses.
        self._known: dict[tuple[str, bool], tuple[str, list[str]]] = {}
        # The first also serves candidates without a folder.
        self._folder_pools = [self._new_folder_pool(size, home)]
        # The folder pool of the run that was collected last.
        self._served = self._folder_pools[0]
        # Submitted runs in order, each with the ranks that serve it.
        self._order: deque[tuple[FolderPool, CaseRun]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> None:
        """Start ranks without waiting for them; otherwise the first case does."""
        self._folder_pools[0].start()

    def wait_until_ready(self) -> Fault | None:
        """Block until every rank is ready; return the fault if one cannot be."""
        folder_pool = self._folder_pools[0]
        return self._wait(folder_pool, lambda: folder_pool.is_ready)

    def require_ready(self) -> None:
        """Block until every rank is ready; raise `CannotStart` if one cannot be."""
        fault = self.wait_until_ready()
        if fault:
            raise CannotStart(fault)

    @property
    def launches(self) -> int:
        """How often ranks were started."""
        return sum(folder_pool.launches for folder_pool in self._folder_pools)

    @property
    def place(self) -> dict[str, str]:
        """The devices, transport and number of ranks, and their hardware once one was ready."""
        place = {
            "device": self.device,
            "devices": ", ".join(self.placement.devices),
            "transport": self.transport,
            "ranks": str(self.size),
        }
        for folder_pool in self._folder_pools:
            place |= folder_pool.hardware
        return place

    def submit(
        self,
        case: Case,
        candidate: Named,
        *,
        traced: bool = False,
        oracle: bool = False,
        learns: bool = False,
        exactly: bool = False,
        plain: str = "",
    ) -> None:
        """Queue a case; ranks begin it as soon as they are free.

        With `plain`, one rank runs that variant of plain training of a recipe, which the name of
        the candidate stands for, or which the candidate has.
        """
        if case.ranks > self.size:
            raise TooFewRanks(
                f"sp*dp={case.sp}*{case.dp}: needs {case.ranks} ranks and the pool has "
                f"{self.size}; use a smaller mesh or more ranks"
            )
        needed = "" if plain else candidate.home
        if needed not in ("", self.home):
            raise NeedsOtherRanks(
                f"candidate={candidate.full}: needs ranks that run in {needed}, and these run in "
                f"{self.home or 'the environment of the harness'}; use a pool of its own"
            )
        run = CaseRun(case, candidate.full, candidate.folder, traced, candidate.slow_imports)
        run.oracle, run.learns, run.plain, run.exactly = oracle, learns, plain, exactly
        if plain:
            self._queue_plain(run)
        else:
            self._queue(run, self._size_for(case, candidate), self.home)

    def load(self, candidate: Named) -> None:
        """Load the code of a candidate or recipe before its first case, to show mistakes early.

        Foreign code is loaded on ranks only, and this does not wait for it: if it does not load,
        the next `collect` raises the reason.
        """
        if not candidate.is_foreign:
            candidate.load()
            return
        run = CaseRun(ONE_RANK_CASE, candidate.full, candidate.folder, traced=False)
        run.slow_imports = candidate.slow_imports
        run.is_load_only = run.is_exclusive = True
        if candidate.role == "against":
            run.plain = "load"
            self._queue_plain(run)
        else:
            self._queue(run, self.size, self.home)

    def limits(self, candidate: Named) -> str:
        """Return the limits that a candidate states; see `knows`."""
        if not candidate.is_foreign:
            return getattr(candidate.load(), "limits", "")
        return self._ask(candidate)[0]

    def has_recipe(self, candidate: Named) -> bool:
        """Return whether a candidate brings its own plain training; see `knows`."""
        return bool(self.hypotheses(candidate))

    def hypotheses(self, candidate: Named) -> list[str]:
        """Return what its recipe says can be wrong with a candidate; none if it has no recipe."""
        if not candidate.is_foreign:
            return list(getattr(candidate.load(), "hypotheses", ()))
        return self._ask(candidate)[1]

    def knows(self, candidate: Named) -> bool:
        """Return whether these two can be asked while cases are under way."""
        return not candidate.is_foreign or _key(candidate) in self._known

    def _size_for(self, case: Case, candidate: Named) -> int:
        """Return how many ranks there are to be: none is idle for a step that takes them all."""
        takes_all = self.knows(candidate) and spans_all_ranks(self.limits(candidate))
        # On several hosts a smaller set of ranks is on this one.
        here = self.size // self._nodes.count if self._nodes else self.size
        return case.ranks if takes_all and case.ranks <= here else self.size

    def _ask(self, candidate: Named) -> tuple[str, list[str]]:
        """Have ranks load a candidate, once, and return its limits and hypotheses."""
        if _key(candidate) not in self._known:
            self.load(candidate)
            while self._order:
                self._collect_run()
        return self._known[_key(candidate)]

    def _collect_run(self) -> tuple[CaseRun, Fault | None]:
        """Wait for the oldest run; return it and its fault, or raise if code does not load."""
        folder_pool, case_run = self._order[0]
        self._served = folder_pool
        fault = self._wait(folder_pool, lambda: case_run.is_complete)
        self._order.popleft()
        folder_pool.waiting.popleft()
        if case_run.is_load_only:
            if fault or case_run.refusals:
                self._drop_runs()
            if fault:
                raise CannotStart(fault)
            if case_run.refusals:
                folder = f"{Path.cwd()}/"
                raise UnknownCandidate(case_run.refusals[0].replace(folder, ""))
            key = case_run.candidate, bool(case_run.plain)
            self._known[key] = case_run.limits, case_run.hypotheses
        return case_run, fault

    def collect(self) -> Outcome:
        """Return the outcome of the oldest case under way."""
        case_run, fault = self._collect_run()
        if case_run.is_load_only:
            return self.collect()
        return fault or case_run.outcome()

    def run(self, case: Case, candidate: Named, **asked: Any) -> Outcome:
        """Submit one case and wait for it; no other case may be under way."""
        if any(not case_run.is_load_only for _, case_run in self._order):
            raise RuntimeError("other cases are under way; use submit and collect")
        self.submit(case, candidate, **asked)
        return self.collect()

    @contextmanager
    def fresh(self, ranks: int) -> Iterator["RankPool"]:
        """Open a pool of ranks that have run nothing; on several hosts it has this one's size."""
        if self._nodes:
            self.close()
            yield self
            return
        if not self.placement.on_cpu:
            # Devices may have no room for more ranks.
            self.close()
        pool = RankPool(
            ranks,
            self.placement,
            home=self.home,
            deadline=self.deadlines.case,
            start_deadline=self.deadlines.start,
        )
        pool.computes_on, pool._known = self.computes_on, self._known
        with pool:
            yield pool

    def close(self) -> None:
        """Stop every rank. The pool can be used again; it then starts afresh."""
        self._order.clear()
        with ExitStack() as stack:
            for folder_pool in self._folder_pools:
                stack.callback(folder_pool.close)

    def kill(self) -> None:
        """End every process at once; cases under way will go to a fresh launch."""
        with ExitStack() as stack:
            for folder_pool in self._folder_pools:
                stack.callback(folder_pool.kill)

    def pids(self) -> list[int]:
        """Return, for each set of ranks, the pid of its supervisor, then those of its ranks."""
        pids = []
        for folder_pool in self._folder_pools:
            if folder_pool.dispatcher:
                launch = folder_pool.dispatcher.launch
                pids.append(launch.host.supervisor.process.pid)
                pids += [launch.links[rank].pid for rank in sorted(launch.links)]
        return pids

    def logs(self) -> dict[int, str]:
        """Return the end of the output of each rank of those that ran the last case."""
        dispatcher = self._served.dispatcher
        return dispatcher.launch.logs() if dispatcher else {}

    def _queue_plain(self, case_run: CaseRun) -> None:
        """Queue plain training for ranks of the harness's own environment."""
        self._queue(case_run, 1 if self.home else self.size, "")

    def _queue(self, case_run: CaseRun, size: int, home: str) -> None:
        folder_pool = self._serving(case_run.folder, size, home)
        folder_pool.waiting.append(case_run)
        self._order.append((folder_pool, case_run))
        folder_pool.start()

    def _serving(self, folder: str, size: int, home: str) -> FolderPool:
        """Return a set of ranks that serves a folder; if there are many, an idle one changes."""
        for folder_pool in self._folder_pools:
            fits = not folder or folder_pool.folder in ("", folder)
            if fits and (folder_pool.size, folder_pool.home) == (size, home):
                folder_pool.folder = folder_pool.folder or folder
                return folder_pool
        # Over several hosts there is one set.
        is_only = self._nodes is not None and size == self.size
        changing = [each for each in self._folder_pools if not is_only or each.size == size]
        idle = next((each for each in changing if not each.waiting), None)
        if is_only and not idle:
            raise NeedsOtherRanks(
                f"candidate in {folder}: needs ranks of its own, and on several hosts all serve "
                f"{changing[0].folder} at the moment; ask for candidates of one folder"
            )
        if idle and (is_only or len(self._folder_pools) >= MOST_SETS):
            idle.close()
            # Move it to the end, where the search for idle ranks comes last.
            self._folder_pools.remove(idle)
            idle.size, idle.home = size, home
        else:
            idle = self._new_folder_pool(size, home)
        self._folder_pools.append(idle)
        idle.folder = folder
        return idle

    def _new_folder_pool(self, size: int, home: str) -> FolderPool:
        def launch(size: int, home: str, imports: Collection[str]) -> Launch:
            nodes = self._nodes if size == self.size else None
            return Launch(size, self.placement, nodes, home, imports)

        return FolderPool(size, home, launch, self._runs, self.deadlines)

    def _drop_runs(self) -> None:
        """Forget every run under way, and kill the ranks that have one."""
        self._order.clear()
        for folder_pool in self._folder_pools:
            is_busy = any(case_run.run for case_run in folder_pool.waiting)
            folder_pool.waiting.clear()
            if is_busy:
                folder_pool.kill()

    def _wait(self, folder_pool: FolderPool, until: Callable[[], bool]) -> Fault | None:
        try:
            return folder_pool.wait(until)
        except BaseException:
            # Most likely a Ctrl-C. Leave nothing behind: the caller may not close the pool.
            self._drop_runs()
            self.kill()
            raise


def _key(candidate: Named) -> tuple[str, bool]:
    return candidate.full, candidate.role == "against"
