"""A set of ranks for the candidates of one folder: one launch, and after a fault the next.

A candidate's imports, registrations and patches affect its whole process. Two candidates of one
folder share ranks, as two scripts of a project share modules; candidates of two folders never do.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from harness.ranks.dispatcher import Deadlines, Dispatcher
from harness.ranks.launch import Launch
from harness.trace import Fault

if TYPE_CHECKING:
    from harness.ranks.case_run import CaseRun


class FolderPool:
    """The cases that wait for these ranks, and the launch that serves them."""

    def __init__(
        self,
        size: int,
        home: str,
        launch: Callable[[int, str, Collection[str]], Launch],
        runs: Iterator[int],
        deadlines: Deadlines,
    ) -> None:
        # How many ranks the next launch has.
        self.size = size
        # The environment that it runs in, as `Named.home` has it.
        self.home = home
        # The folder whose candidates it serves; empty until the first has come.
        self.folder = ""
        self.waiting: deque[CaseRun] = deque()
        # What these and earlier cases import that takes long.
        self._imports = set[str]()
        self.dispatcher: Dispatcher | None = None
        self.launches = 0
        # The hardware that ranks of earlier launches reported.
        self._hardware: dict[str, str] = {}
        self._launch, self._runs, self._deadlines = launch, runs, deadlines
        # How often a start may still fail, and the fault of the last failure. Every case gets that
        # fault from then on: another start would fail as well, and take as long.
        self._failures_left = 1
        self._start_fault: Fault | None = None

    @property
    def is_ready(self) -> bool:
        """Whether every rank is ready."""
        return self.dispatcher is not None and self.dispatcher.is_ready

    @property
    def hardware(self) -> dict[str, str]:
        """The hardware of its ranks, if any of them was ever ready."""
        return self._hardware | (self.dispatcher.launch.hardware if self.dispatcher else {})

    def start(self) -> None:
        """Start a launch if there is none, and give ready ranks the cases that wait for them."""
        if self._start_fault is None:
            self._ensure_dispatcher().feed()

    def wait(self, until: Callable[[], bool]) -> Fault | None:
        """Serve cases until a condition holds, or return the fault that comes first."""
        if self._start_fault is not None:
            return self._start_fault
        dispatcher = self._ensure_dispatcher()
        dispatcher.feed()
        dispatcher.listen()
        while not until():
            incidents = dispatcher.incidents()
            if dispatcher.is_ready:
                # Ranks that were ready once may fail to start once: the machine may be busy.
                self._failures_left = 2
            if not incidents:
                continue
            report = dispatcher.report(incidents)
            if dispatcher.is_of_later_case(report.root):
                self.kill()
                for case_run in self.waiting:
                    case_run.is_exclusive = True
                dispatcher = self._ensure_dispatcher()
                continue
            fault = dispatcher.fault(report)
            if not dispatcher.is_ready:
                self._failures_left -= 1
                self._start_fault = None if self._failures_left else fault
            self.kill()
            return fault
        return None

    def close(self) -> None:
        """Kill the launch, and forget the folder, the waiting cases and any failed start."""
        self.folder = ""
        self.waiting.clear()
        self._imports.clear()
        self._failures_left, self._start_fault = 1, None
        self.kill()

    def kill(self) -> None:
        """End every process at once; cases under way will go to a fresh launch."""
        dispatcher, self.dispatcher = self.dispatcher, None
        for case_run in self.waiting:
            case_run.take_back()
        if dispatcher is not None:
            self._hardware |= dispatcher.launch.hardware
            dispatcher.launch.kill()

    def _ensure_dispatcher(self) -> Dispatcher:
        """Return the dispatcher of the present launch, or of a new one if there is none."""
        if self.dispatcher is None:
            self._imports.update(*(case_run.slow_imports for case_run in self.waiting))
            launch = self._launch(self.size, self.home, self._imports)
            self.dispatcher = Dispatcher(launch, self.waiting, self._runs, self._deadlines)
            self.launches += 1
        return self.dispatcher
