"""What a failure is recognised by when it is seen again."""

from dataclasses import dataclass

from harness.compare import Comparison

# Said of how it comes and goes from run to run, in front of what its tensors look like.
OF_RUNS = ("stale-state", "not-repeatable")


@dataclass(frozen=True, slots=True)
class Mark:
    """Two failures with the same mark are the same failure."""

    verdict: str
    # The first key or misfit, or the kind of fault; empty where nothing failed.
    where: str = ""
    # What the tensors of this very case look like.
    root: str = ""

    def __str__(self) -> str:
        place = f"{' at' if self.verdict == 'DIVERGED' else ''} {self.where}" if self.where else ""
        return f"{self.verdict}{place}{f', {self.root}' if self.root else ''}"


def mark_of(comparison: Comparison) -> Mark:
    where = ""
    if comparison.fault:
        where = str(comparison.fault.kind)
    elif comparison.first:
        where = comparison.first.key
    elif comparison.misfits:
        where = f"{comparison.misfits[0].key}, {comparison.misfits[0].kind}"
    names = [look.name for look in comparison.looks if not look.larger]
    shown = [name for name in names if name not in OF_RUNS]
    return Mark(comparison.verdict.name, where, next(iter(shown or names), ""))
