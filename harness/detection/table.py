"""The kill table."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.campaign.table import say, titled
from harness.detection.score import Score
from harness.detection.trial import Trial


def show(power: Score, console: Console) -> None:
    """Every mutant, every benign variant, and the score below them."""
    if power.mutants:
        console.print(_mutants(power.mutants))
    if power.benign:
        console.print(_benign(power.benign))
    say(console, score(power))
    for trial in power.survivors:
        say(console, f"mutants.{trial.key} survives {trial.cases} cases: {trial.sentence}")
    if power.hidden:
        keys = ", ".join(trial.key for trial in power.hidden)
        say(console, f"wrong at sp 1 too: {keys}")
    for trial in power.flagged:
        say(console, f"\nbenign.{trial.key} was flagged: {trial.sentence}\n{trial.explanation}")


def score(power: Score) -> str:
    """One line."""
    parts = []
    if power.mutants:
        parts.append(f"{len(power.killed)} of {len(power.mutants)} mutants killed")
        if power.hidden:
            hidden = f"{len(power.hidden)} are wrong at sp 1 too, so that this does not show them"
            parts.append(hidden)
        parts.append(f"{len(power.named_right)} named right")
        parts.append(f"median {power.median_seconds:.2g} s to the first failure")
    if power.benign:
        spared = len(power.benign) - len(power.flagged)
        parts.append(f"{spared} of {len(power.benign)} benign variants left alone")
    return f"{'; '.join(parts)}; {power.seconds:.0f} s in all"


def _mutants(trials: list[Trial]) -> Table:
    table = titled("mutants")
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
            _found(trial),
            f"{trial.seconds:.1f}",
            trial.size,
            Text("wrong at sp 1 too") if trial.hidden else named,
        )
    return table


def _benign(trials: list[Trial]) -> Table:
    table = titled("benign variants")
    table.add_column("variant", no_wrap=True)
    for name in ("case", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("the change", overflow="fold")
    for trial in trials:
        key = Text(trial.key, "bold red" if trial.failed else "")
        table.add_row(key, _found(trial), f"{trial.seconds:.1f}", Text(trial.sentence))
    return table


def _found(trial: Trial) -> str:
    """Which case it failed first; or how many it did not."""
    return str(trial.cases) if trial.failed else f"none of {trial.cases}"
