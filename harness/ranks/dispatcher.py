"""Cases go to the ranks of one launch; what goes wrong there comes out as incidents."""

import itertools
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from harness.ranks.case_run import CaseRun, disagreed, take_in
from harness.ranks.cpu_wait import share_waited
from harness.ranks.fault_report import FaultReport, Incident, ask
from harness.ranks.launch import Launch
from harness.ranks.link import Event
from harness.ranks.messages import Mesh, Message, Run
from harness.trace import Fault, Kind

# How long those who are late get to say that they still import.
ASKING = 1.0
# A share of time in which ranks wait for a processor that is worth a word, and how many times its
# deadline a case may take because of it.
BUSY, MOST_TIMES = 0.25, 10


@dataclass(slots=True)
class Deadlines:
    """How many seconds a case may take, and how many a start."""

    case: float
    start: float


class Dispatcher:
    """Serves the case_runs of a folder_pool, the oldest first, until something goes wrong."""

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
        """Whether every rank is up."""
        links = self.launch.links
        return len(links) == self.launch.size and all(link.ready for link in links.values())

    def listen(self) -> None:
        """Begin to wait: for the launch, or for the oldest case.

        Not when the case was submitted: while nobody listened, no rank could be heard.
        """
        self._since = time.monotonic()
        # Unlike `_since`, never moved because something is still importing.
        self._begun = self._since

    def feed(self) -> None:
        """Give the ranks, once they are up, all that they may have in hand."""
        if self.is_ready and self._waiting:
            for case_run in itertools.islice(self._waiting, 1 if self._waiting[0].alone else None):
                if not case_run.run:
                    self._dispatch(case_run)

    def incidents(self) -> list[Incident]:
        """What comes next; of what comes at once, nothing comes a second time."""
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
            return [Incident(Kind.START, text, late=True)]
        return self._late()

    def report(self, noticed: list[Incident]) -> FaultReport:
        """Start a report of what was noticed, and gather what comes of it."""
        report = FaultReport(self.launch, noticed)
        report.gather(lambda seconds: self._take_in(self.launch.events(seconds)))
        return report

    def is_of_a_later_case(self, root: Incident) -> bool:
        """Whether the oldest case is not to blame."""
        if sum(case_run.run > 0 for case_run in self._waiting) < 2 or root.rank is None:
            return False
        oldest = self._waiting[0]
        return (
            root.rank >= oldest.case.ranks
            or root.rank in oldest.fragments
            or root.run not in (None, oldest.run)
        )

    def fault(self, report: FaultReport) -> Fault:
        """What is to be told of it."""
        if not self._waiting:
            return report.fault(0, [])
        case_run = self._waiting[0]
        return report.fault(case_run.case.ranks, sorted(case_run.fragments))

    def _dispatch(self, case_run: CaseRun) -> None:
        case_run.run = next(self._runs)
        mesh = (case_run.case.dp, case_run.case.sp)
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
            loads=case_run.loads,
        )
        self._send(range(case_run.case.ranks), run)

    def _send(self, ranks: range, message: Message) -> None:
        # A socket that does not take it belongs to a rank whose end is about to be noticed.
        for rank in ranks:
            self.launch.send(rank, message)

    def _late(self) -> list[Incident]:
        """Give a rank that still imports the time of a start; any other rank is stuck."""
        doing, events = ask(self.launch, ASKING)
        incidents, case_run = self._take_in(events), self._waiting[0]
        if incidents or case_run.complete:
            return incidents
        importing = {
            rank: doing[rank].importing
            for rank in range(case_run.case.ranks)
            if rank in doing and doing[rank].importing
        }
        if case_run.refusals:
            # Ranks that do not refuse wait for those that do.
            return [disagreed(case_run.refusals)]
        if not importing:
            return self._stuck(case_run)
        if time.monotonic() - self._begun < self._deadlines.start:
            self._since = time.monotonic()
            return []
        rank, module = min(importing.items())
        text = f"still imported {module} after {self._deadlines.start:g} s"
        return [Incident(Kind.START, text, rank, late=True)]

    def _stuck(self, case_run: CaseRun) -> list[Incident]:
        """What a busy machine keeps from its ranks is not held against them."""
        links = self.launch.links
        silent = [links[r] for r in range(case_run.case.ranks) if r not in case_run.fragments]
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
        return [Incident(Kind.HUNG, text, late=True)]

    def _take_in(self, events: list[Event]) -> list[Incident]:
        taken = [take_in(event, self._waiting, up=self.is_ready) for event in events]
        return [incident for incident in taken if incident]
