"""Show the kill table: what became of each mutant and benign variant, and the score."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.console import empty_table, print_plain
from harness.detection.score import Score
from harness.detection.trial import Trial


def show(score: Score, console: Console) -> None:
    """Show both tables, the score, and each mutant or variant that makes the score fail."""
    if score.mutants:
        console.print(_mutant_table(score.mutants))
    if score.benign:
        console.print(_benign_table(score.benign))
    print_plain(console, _score_line(score))
    for trial in score.survivors:
        print_plain(console, f"mutants.{trial.key} survives {trial.cases} cases: {trial.sentence}")
    if score.hidden:
        keys = ", ".join(trial.key for trial in score.hidden)
        print_plain(console, f"wrong at sp 1 too: {keys}")
    for trial in score.flagged:
        print_plain(
            console, f"\nbenign.{trial.key} was flagged: {trial.sentence}\n{trial.explanation}"
        )


def _score_line(score: Score) -> str:
    """Return the score in one line."""
    parts = []
    if score.mutants:
        parts.append(f"{len(score.killed)} of {len(score.mutants)} mutants killed")
        if score.hidden:
            hidden = len(score.hidden)
            parts.append(f"{hidden} are wrong at sp 1 too, so that this does not show them")
        parts.append(f"{len(score.named_right)} named right")
        parts.append(f"median {score.median_seconds:.2g} s to the first failure")
    if score.benign:
        spared = len(score.benign) - len(score.flagged)
        parts.append(f"{spared} of {len(score.benign)} benign variants left alone")
    return f"{'; '.join(parts)}; {score.seconds:.0f} s in all"


def _mutant_table(trials: list[Trial]) -> Table:
    table = empty_table("mutants")
    table.add_column("mutant", no_wrap=True)
    for name in ("case", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("which has", no_wrap=True)
    table.add_column("named", overflow="fold")
    for trial in trials:
        named = Text(trial.named, "" if trial.named_right else "bold yellow")
        if trial.failed and not trial.named_right:
            named.append(f", not {trial.expected}")
        table.add_row(
            Text(trial.key, "" if trial.failed or trial.hidden else "bold red"),
            _killing_case(trial),
            f"{trial.seconds:.1f}",
            trial.size,
            Text("wrong at sp 1 too") if trial.hidden else named,
        )
    return table


def _benign_table(trials: list[Trial]) -> Table:
    table = empty_table("benign variants")
    table.add_column("variant", no_wrap=True)
    for name in ("case", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("the change", overflow="fold")
    for trial in trials:
        key = Text(trial.key, "bold red" if trial.failed else "")
        table.add_row(key, _killing_case(trial), f"{trial.seconds:.1f}", Text(trial.sentence))
    return table


def _killing_case(trial: Trial) -> str:
    """Return the number of the first case that failed, or `none` and how many were judged."""
    return str(trial.cases) if trial.failed else f"none of {trial.cases}"
