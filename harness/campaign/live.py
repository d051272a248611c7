"""What `check` shows while it runs: a line that moves, or in a log one line a minute."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness.campaign.summary import Summary
from harness.campaign.table import say
from harness.compare import Comparison

# Seconds between two lines of a log.
EVERY = 60.0


class Live(Progress):
    """Cases done, rate, situations seen, time left; and each failure when it is found."""

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
        # Cases and situations of lots that are done.
        self._done, self._met = 0, set[str]()
        self._started = self._told = time.monotonic()
        self._checking = self.add_task("checking", total=total, rate="-", seen="-")

    def found(self, failure: Comparison) -> None:
        """It may be long until it is shrunk and explained."""
        say(self.console, f"{failure.verdict.name}  {failure.candidate}  {failure.case}")

    def tell(self, summary: Summary, doing: str = "checking") -> None:
        """How far the lot is that is being judged."""
        self._show(self._done + judged(summary), self._met | met(summary), doing)

    def count(self, summary: Summary) -> None:
        """What a lot came to, whoever judged it."""
        self._done += judged(summary)
        self._met |= met(summary)
        self._show(self._done, self._met, "checking")

    def _show(self, done: int, seen: set[str], doing: str) -> None:
        now = time.monotonic()
        elapsed = max(now - self._started, 1e-6)
        if not self.console.is_terminal and now - self._told > EVERY:
            self._told = now
            say(self.console, f"{doing}: {done} of {self._total} cases in {elapsed:.0f} s")
        self.update(
            self._checking,
            completed=done,
            description=doing,
            rate=f"{done / elapsed:.0f}",
            seen=f"{len(seen)}/{self._situations}",
        )


def judged(summary: Summary) -> int:
    return max(tally.judged for tally in summary.tallies.values())


def met(summary: Summary) -> set[str]:
    return {name for name, count in summary.situations.items() if count}
