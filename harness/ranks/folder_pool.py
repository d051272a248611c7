"""Ranks for the candidates of one folder: one launch, and after a fault the next.

What two candidates import, register and patch is a matter of their processes. Two candidates
of one folder share it as two scripts of a project do; candidates of two folders never do.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from harness.ranks.dispatcher import Deadlines, Dispatcher
from harness.ranks.launch import Launch
from harness.trace import Fault

if TYPE_CHECKING:
    from harness.ranks.case_run import CaseRun


class FolderPool:
    """The cases that wait for these ranks, and the launch that serves them."""

    def __init__(
        self, launch: Callable[[], Launch], runs: Iterator[int], deadlines: Deadlines
    ) -> None:
        # Whose candidates they serve; nobody's yet.
        self.folder = ""
        self.waiting: deque[CaseRun] = deque()
        self.dispatcher: Dispatcher | None = None
        self.launches = 0
        # What ranks said of it that are gone.
        self._hardware: dict[str, str] = {}
        self._launch, self._runs, self._deadlines = launch, runs, deadlines
        # How often they may still fail to come up, and the fault of the last time. It is told of
        # every case from then on: the next start would fail as well, after as long.
        self._failures_left = 1
        self._unable: Fault | None = None

    @property
    def is_ready(self) -> bool:
        """Whether every rank is up."""
        return self.dispatcher is not None and self.dispatcher.is_ready

    @property
    def hardware(self) -> dict[str, str]:
        """What its ranks run on, as far as one was ever up."""
        return self._hardware | (self.dispatcher.launch.hardware if self.dispatcher else {})

    def start(self) -> None:
        """Begin launching, and give ranks that are up what waits for them."""
        if self._unable is None:
            self._begin().feed()

    def wait(self, until: Callable[[], bool]) -> Fault | None:
        """Listen to the ranks until then, or until something goes wrong."""
        if self._unable is not None:
            return self._unable
        dispatcher = self._begin()
        dispatcher.feed()
        dispatcher.listen()
        while not until():
            noticed = dispatcher.incidents()
            if dispatcher.is_ready:
                # Ranks that came up before may fail once: the machine may be busy.
                self._failures_left = 2
            if not noticed:
                continue
            report = dispatcher.report(noticed)
            if dispatcher.is_of_a_later_case(report.root):
                self.kill()
                for case_run in self.waiting:
                    case_run.alone = True
                dispatcher = self._begin()
                continue
            fault = dispatcher.fault(report)
            if not dispatcher.is_ready:
                self._failures_left -= 1
                self._unable = None if self._failures_left else fault
            self.kill()
            return fault
        return None

    def close(self) -> None:
        """Stop them, and forget whom they served, what waited and what went wrong."""
        self.folder = ""
        self.waiting.clear()
        self._failures_left, self._unable = 1, None
        self.kill()

    def kill(self) -> None:
        """End every process at once; cases under way will go to a fresh launch."""
        dispatcher, self.dispatcher = self.dispatcher, None
        for case_run in self.waiting:
            case_run.take_back()
        if dispatcher is not None:
            self._hardware |= dispatcher.launch.hardware
            dispatcher.launch.kill()

    def _begin(self) -> Dispatcher:
        """The ranks that are there, or those of a fresh launch."""
        if self.dispatcher is None:
            self.dispatcher = Dispatcher(self._launch(), self.waiting, self._runs, self._deadlines)
            self.launches += 1
        return self.dispatcher
