"""Ranks for the candidates of one folder: one launch, and after a fault the next.

What two candidates import, register and patch is a matter of their processes. Two candidates
of one folder share it as two scripts of a project do; candidates of two folders never do.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from harness.ranks.crew import Crew, Deadlines
from harness.ranks.launch import Launch
from harness.trace import Fault

if TYPE_CHECKING:
    from harness.ranks.ticket import Ticket


class Station:
    """The cases that wait for these ranks, and the launch that serves them."""

    def __init__(
        self, launch: Callable[[], Launch], runs: Iterator[int], deadlines: Deadlines
    ) -> None:
        # Whose candidates they serve; nobody's yet.
        self.folder = ""
        self.waiting: deque[Ticket] = deque()
        self.crew: Crew | None = None
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
        return self.crew is not None and self.crew.is_ready

    @property
    def hardware(self) -> dict[str, str]:
        """What its ranks run on, as far as one was ever up."""
        return self._hardware | (self.crew.launch.hardware if self.crew else {})

    def start(self) -> None:
        """Begin launching, and give ranks that are up what waits for them."""
        if self._unable is None:
            self._begin().feed()

    def wait(self, until: Callable[[], bool]) -> Fault | None:
        """Listen to the ranks until then, or until something goes wrong."""
        if self._unable is not None:
            return self._unable
        crew = self._begin()
        crew.feed()
        crew.listen()
        while not until():
            noticed = crew.troubles()
            if crew.is_ready:
                # Ranks that came up before may fail once: the machine may be busy.
                self._failures_left = 2
            if not noticed:
                continue
            autopsy = crew.autopsy(noticed)
            if crew.is_of_a_later_case(autopsy.root):
                self.kill()
                for ticket in self.waiting:
                    ticket.alone = True
                crew = self._begin()
                continue
            fault = crew.fault(autopsy)
            if not crew.is_ready:
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
        crew, self.crew = self.crew, None
        for ticket in self.waiting:
            ticket.take_back()
        if crew is not None:
            self._hardware |= crew.launch.hardware
            crew.launch.kill()

    def _begin(self) -> Crew:
        """The ranks that are there, or those of a fresh launch."""
        if self.crew is None:
            self.crew = Crew(self._launch(), self.waiting, self._runs, self._deadlines)
            self.launches += 1
        return self.crew
