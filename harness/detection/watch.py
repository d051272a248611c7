"""What `mutants` shows while it runs: a line that moves, or one for each trial."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from harness.detection.trial import Trial


class Watch:
    """Told of every trial."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("trying", total=total)

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

    def __call__(self, trial: Trial) -> None:
        outcome = f"{trial.verdict} at case {trial.cases}, {trial.named}" if trial.failed else "-"
        if not self._console.is_terminal:
            said = f"{trial.key}: {outcome}, {trial.seconds:.1f} s"
            self._console.print(said, markup=False, highlight=False, soft_wrap=True)
        self._progress.update(self._task, advance=1, description=trial.key)
