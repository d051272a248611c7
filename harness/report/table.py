"""What `check` shows while it runs and when it is done."""

import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from harness.compare import Comparison, Verdict
from harness.report.record import comparison_record


@dataclass(slots=True)
class Tally:
    """What was seen so far of one candidate."""

    candidate: str
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    elements: int = 0
    used: float = 0.0
    # The first that failed, shrunk.
    failure: Comparison | None = None

    def add(self, comparison: Comparison) -> None:
        self.verdicts[comparison.verdict] += 1
        self.elements += comparison.elements
        if comparison.verdict.passed:
            self.used = max(self.used, comparison.used)

    @property
    def cases(self) -> int:
        return self.verdicts.total()

    @property
    def verdict(self) -> Verdict:
        """The worst; what the candidate declared unsupported counts only if it is most of it."""
        unsupported = self.verdicts[Verdict.UNSUPPORTED]
        if 2 * unsupported > self.cases:
            return Verdict.FAULT
        return Verdict.worst(v for v in self.verdicts if v is not Verdict.UNSUPPORTED)


@dataclass(slots=True)
class Summary:
    """A whole run."""

    tallies: dict[str, Tally]
    situations: Counter[str] = field(default_factory=Counter)
    cases: int = 0
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        return Verdict.worst(tally.verdict for tally in self.tallies.values())

    def record(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict.name,
            "cases": self.cases,
            "seconds": round(self.seconds, 3),
            "situations": dict(self.situations),
            "candidates": {
                name: {
                    "verdict": tally.verdict.name,
                    "cases": tally.cases,
                    "verdicts": {verdict.name: n for verdict, n in tally.verdicts.items()},
                    "elements": tally.elements,
                    "used": tally.used,
                    "failure": comparison_record(tally.failure)
                    if tally.failure is not None
                    else None,
                }
                for name, tally in self.tallies.items()
            },
        }


class Live:
    """A progress line: cases done, rate, situations seen, time left."""

    def __init__(self, console: Console, total: int, situations: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
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


def short_name(candidate: str) -> str:
    """Without the folders: a table is narrow."""
    return candidate.rpartition("/")[2]


def show(summary: Summary, names: list[str], console: Console) -> None:
    """The closing tables."""
    noun = "case" if summary.cases == 1 else "cases"
    table = Table(
        title=f"{summary.cases} {noun} in {summary.seconds:.1f} s",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 0, 0, 1),
    )
    columns = [v for v in Verdict if v is not Verdict.KNOWN]
    table.add_column("candidate", min_width=13, overflow="fold")
    for verdict in columns:
        table.add_column(verdict.name.lower(), justify="right", no_wrap=True)
    table.add_column("elements", justify="right", no_wrap=True)
    table.add_column("used", justify="right", no_wrap=True)
    for tally in summary.tallies.values():
        counts = [str(tally.verdicts[verdict] or "·") for verdict in columns]
        table.add_row(
            short_name(tally.candidate), *counts, f"{tally.elements:,}", f"{tally.used:.2g}"
        )
    console.print(table)
    corners = Table(title="situations met", title_justify="left", show_header=False, box=None)
    corners.add_column(justify="right")
    corners.add_column()
    for name in names:
        corners.add_row(str(summary.situations[name]), name)
    console.print(corners)
