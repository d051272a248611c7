"""What became of a trace that was computed again."""

from dataclasses import dataclass
from enum import StrEnum

from harness.compare.agreement import unlike
from harness.compare.elementwise import measure_noise, moved
from harness.trace import Trace


class Change(StrEnum):
    """From harmless to not."""

    NONE = "none"
    DRIFT = "environment drift"
    # Bits of two runs here differ, so that those of an earlier one tell nothing.
    UNREPEATABLE = "not repeatable"
    # Other bits in the same environment: somebody changed what computes them.
    CHANGED = "changed"
    SEMANTIC = "semantic change"

    @property
    def failed(self) -> bool:
        """Whether somebody has to look at it."""
        return self in (Change.CHANGED, Change.SEMANTIC)


@dataclass(frozen=True, slots=True)
class Moved:
    """One tensor that is not what it was."""

    key: str
    moved: int
    elements: int
    # The farthest move, as a share of what counts as drift.
    farthest: float


@dataclass(frozen=True, slots=True)
class Drift:
    """How far a trace is from what it was."""

    change: Change
    tensors: tuple[Moved, ...] = ()
    # Why they cannot even be put side by side, or nothing.
    unlike: str = ""

    def __str__(self) -> str:
        if self.unlike:
            return f"{self.change}: {self.unlike}"
        if not self.tensors:
            return str(self.change)
        worst = max(self.tensors, key=lambda each: each.farthest)
        return (
            f"{self.change}: {len(self.tensors)} tensors moved, {worst.key} farthest: "
            f"{worst.moved} of {worst.elements} elements, by {worst.farthest:.2g} of what is drift"
        )


def drift(before: Trace, now: Trace) -> Drift:
    """Compare fp64 traces of one case, made by one definition at two times."""
    why = unlike(before, now)
    if why:
        return Drift(Change.SEMANTIC, unlike=why)
    noise = measure_noise({key: (before[key].values, [before[key].values]) for key in before})
    tensors = []
    for key in before:
        count, farthest = moved(before[key].values, now[key].values, noise, key)
        if count:
            tensors.append(Moved(key, count, before[key].values.size, farthest))
    if any(each.farthest > 1.0 for each in tensors):
        return Drift(Change.SEMANTIC, tuple(tensors))
    return Drift(Change.DRIFT if tensors else Change.NONE, tuple(tensors))
