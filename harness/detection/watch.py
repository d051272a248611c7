"""Show the progress of `mutants`: a line that moves on a terminal, one line a trial in a log."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from harness.console import print_plain
from harness.detection.trial import Trial


class TrialProgress(Progress):
    """A progress line; call it with each trial that is done."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._trying = self.add_task("trying", total=total)

    def __call__(self, trial: Trial) -> None:
        outcome = f"{trial.verdict} at case {trial.cases}, {trial.named}" if trial.failed else "-"
        if not self.console.is_terminal:
            print_plain(self.console, f"{trial.key}: {outcome}, {trial.seconds:.1f} s")
        self.update(self._trying, advance=1, description=trial.key)
