"""Show the progress of `check`: a line that moves on a terminal, one line a minute in a log."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness.campaign.summary import Summary
from harness.compare import Comparison
from harness.console import print_plain

# Seconds between two lines of a log.
LOG_INTERVAL = 60.0
CHECKING = "checking"


class Live(Progress):
    """Shows cases done, rate, situations met and time left, and each failure when it is found."""

    def __init__(self, console: Console, total: int, situations: int) -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]} cases/s"),
            TextColumn("{task.fields[seen]} situations"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._total, self._situations = total, situations
        # Cases and situations of lots that are counted.
        self._done, self._met = 0, set[str]()
        self._started = self._last_logged = time.monotonic()
        self._checking = self.add_task(CHECKING, total=total, rate="-", seen="-")

    def found(self, failure: Comparison) -> None:
        """Show a failure at once; shrinking and explaining it can take minutes."""
        print_plain(self.console, f"{failure.verdict.name}  {failure.candidate}  {failure.case}")

    def tell(self, summary: Summary, doing: str = CHECKING) -> None:
        """Show how far the lot is that is being judged."""
        done, met = self._done + judged_cases(summary), self._met | met_situations(summary)
        self._show(done, met, doing)

    def count(self, summary: Summary) -> None:
        """Count a lot that is judged, here or by another process."""
        self._done += judged_cases(summary)
        self._met |= met_situations(summary)
        self._show(self._done, self._met, CHECKING)

    def _show(self, done: int, met: set[str], doing: str) -> None:
        now = time.monotonic()
        elapsed = max(now - self._started, 1e-6)
        if not self.console.is_terminal and now - self._last_logged > LOG_INTERVAL:
            self._last_logged = now
            line = f"{doing}: {done} of {self._total} cases in {elapsed:.0f} s"
            if done and doing == CHECKING:
                line += f", about {elapsed / done * (self._total - done):.0f} s left"
            print_plain(self.console, line)
        self.update(
            self._checking,
            completed=done,
            description=doing,
            rate=f"{done / elapsed:.0f}",
            seen=f"{len(met)}/{self._situations}",
        )


def judged_cases(summary: Summary) -> int:
    return max(tally.judged for tally in summary.tallies.values())


def met_situations(summary: Summary) -> set[str]:
    return {name for name, count in summary.situations.items() if count}
