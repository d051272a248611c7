"""Give cases to the ranks of one launch, and turn what goes wrong there into incidents."""

import itertools
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from harness.processes.cpu_wait import share_waited
from harness.ranks.case_run import CaseRun, refusal_incident, take_in
from harness.ranks.fault_report import FaultReport, Incident, probe_ranks
from harness.ranks.launch import Launch
from harness.trace import Fault, Kind
from harness.wire.link import Event
from harness.wire.messages import Mesh, Message, Run

# Seconds in which ranks that missed a deadline can report that they still import.
ASKING = 1.0
# The share of time spent waiting for a processor that is worth mentioning, and how many times its
# deadline a case may take because of such waits.
BUSY, MOST_TIMES = 0.25, 10


@dataclass(slots=True)
class Deadlines:
    """The seconds that a case may take, and that a start may take."""

    case: float
    start: float


class Dispatcher:
    """Serves the waiting cases of a `FolderPool`, oldest first, until something goes wrong."""

    def __init__(
        self,
        launch: Launch,
        waiting: deque[CaseRun],
        runs: Iterator[int],
        deadlines: Deadlines,
    ) -> None:
        self.launch = launch
        self._waiting, self._runs, self._deadlines = waiting, runs, deadlines
        self.listen()

    @property
    def is_ready(self) -> bool:
        """Whether every rank is ready."""
        links = self.launch.links
        return len(links) == self.launch.size and all(link.is_ready for link in links.values())

    def listen(self) -> None:
        """Start the clock of the deadline, for the launch or for the oldest case.

        It does not start when a case is submitted: no answer is read before the caller waits.
        """
        self._began = time.monotonic()
        # Unlike `_began`, it is moved while a rank is still importing.
        self._since = self._began

    def feed(self) -> None:
        """Give the ranks, if they are ready, every waiting case; only the oldest if exclusive."""
        if self.is_ready and self._waiting:
            count = 1 if self._waiting[0].is_exclusive else None
            for case_run in itertools.islice(self._waiting, count):
                if not case_run.run:
                    self._dispatch(case_run)

    def incidents(self) -> list[Incident]:
        """Wait for the next events; return the incidents among them, each only once."""
        was_ready = self.is_ready
        allowed = self._deadlines.case if was_ready else self._deadlines.start
        left = self._since + allowed - time.monotonic()
        incidents = self._take_in(self.launch.events(left))
        if incidents:
            return incidents
        if left > 0:
            if self.is_ready and not was_ready:
                self.feed()
                self.listen()
            return []
        if not was_ready:
            text = f"not all ranks were up within {allowed:g} s: {self.launch.missing()}"
            return [Incident(Kind.START, text, is_late=True)]
        return self._check_late_ranks()

    def report(self, incidents: list[Incident]) -> FaultReport:
        """Start a report of incidents, and gather those that follow from them."""
        report = FaultReport(self.launch, incidents)
        report.gather(lambda seconds: self._take_in(self.launch.events(seconds)))
        return report

    def is_of_later_case(self, root: Incident) -> bool:
        """Whether the incident belongs to another case than the oldest."""
        if sum(case_run.run > 0 for case_run in self._waiting) < 2 or root.rank is None:
            return False
        oldest = self._waiting[0]
        return (
            root.rank >= oldest.ranks
            or root.rank in oldest.fragments
            or root.run not in (None, oldest.run)
        )

    def fault(self, report: FaultReport) -> Fault:
        """Return the fault of the oldest case."""
        if not self._waiting:
            return report.fault(0, [])
        case_run = self._waiting[0]
        return report.fault(case_run.ranks, sorted(case_run.fragments))

    def _dispatch(self, case_run: CaseRun) -> None:
        case_run.run = next(self._runs)
        mesh = case_run.mesh
        if mesh not in self.launch.meshes:
            self.launch.meshes.add(mesh)
            self._send(range(self.launch.size), Mesh(*mesh))
        run = Run(
            case_run.run,
            str(case_run.case),
            case_run.candidate,
            case_run.folder,
            traced=case_run.traced,
            oracle=case_run.oracle,
            learns=case_run.learns,
            is_load_only=case_run.is_load_only,
            plain=case_run.plain,
            exactly=case_run.exactly,
        )
        self._send(range(case_run.ranks), run)

    def _send(self, ranks: range, message: Message) -> None:
        # Sending fails only if the rank is exiting, and its end is noticed elsewhere.
        for rank in ranks:
            self.launch.send(rank, message)

    def _check_late_ranks(self) -> list[Incident]:
        """Give a rank that still imports the time of a start; any other late rank hangs."""
        activities, events = probe_ranks(self.launch, ASKING)
        incidents, case_run = self._take_in(events), self._waiting[0]
        if incidents or case_run.is_complete:
            return incidents
        importing = {
            rank: activities[rank].importing
            for rank in range(case_run.ranks)
            if rank in activities and activities[rank].importing
        }
        if case_run.refusals:
            # The ranks that run the case wait for those that refuse it.
            return [refusal_incident(case_run.refusals)]
        if not importing:
            return self._check_hanging_ranks(case_run)
        if time.monotonic() - self._began < self._deadlines.start:
            self._since = time.monotonic()
            return []
        rank, module = min(importing.items())
        text = f"still imported {module} after {self._deadlines.start:g} s"
        return [Incident(Kind.START, text, rank, is_late=True)]

    def _check_hanging_ranks(self, case_run: CaseRun) -> list[Incident]:
        """Return that ranks hang, unless a busy machine has given them too little time so far."""
        links = self.launch.links
        silent = [links[r] for r in range(case_run.ranks) if r not in case_run.fragments]
        share = share_waited(link.pid for link in silent if not link.host)
        passed, allowed = time.monotonic() - self._since, self._deadlines.case
        if passed * (1 - share) < allowed and passed < MOST_TIMES * allowed:
            return []
        text = f"gave no answer within {allowed:g} s"
        if share > BUSY:
            text = (
                f"gave no answer within {passed:.0f} s on a busy machine, where it was ready to "
                f"run and had no processor {share:.0%} of the time; --deadline allows more"
            )
        return [Incident(Kind.HUNG, text, is_late=True)]

    def _take_in(self, events: list[Event]) -> list[Incident]:
        found = [take_in(event, self._waiting, is_ready=self.is_ready) for event in events]
        return [incident for incident in found if incident]
