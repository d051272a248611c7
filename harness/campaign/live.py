"""What `check` shows while it runs."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Live:
    """A progress line: cases done, rate, situations seen, time left."""

    def __init__(self, console: Console, total: int, situations: int) -> None:
        self._progress = Progress(
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
        self._task = self._progress.add_task("checking", total=total, rate="-", seen="-")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def update(self, done: int, seen: int, doing: str = "checking") -> None:
        elapsed = max(time.monotonic() - self._started, 1e-6)
        self._progress.update(
            self._task,
            completed=done,
            description=doing,
            rate=f"{done / elapsed:.0f}",
            seen=f"{seen}/{self._situations}",
        )
