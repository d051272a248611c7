"""What `check` shows while it runs."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Live(Progress):
    """A progress line: cases done, rate, situations seen, time left."""

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
        self._situations, self._started = situations, time.monotonic()
        self._checking = self.add_task("checking", total=total, rate="-", seen="-")

    def tell(self, done: int, seen: int, doing: str = "checking") -> None:
        elapsed = max(time.monotonic() - self._started, 1e-6)
        self.update(
            self._checking,
            completed=done,
            description=doing,
            rate=f"{done / elapsed:.0f}",
            seen=f"{seen}/{self._situations}",
        )
