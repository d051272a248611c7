"""Compares a stored trace with the same trace computed again, later or elsewhere."""

from dataclasses import dataclass
from enum import StrEnum

from harness.compare.agreement import structural_difference
from harness.compare.elementwise import measure_move, measure_noise
from harness.trace import Trace


class Change(StrEnum):
    """How a trace changed since it was stored, from harmless to harmful."""

    NONE = "none"
    DRIFT = "environment drift"
    # Two runs in this environment differ in bits, so a difference from the stored run is no news.
    UNREPEATABLE = "not repeatable"
    # Bits differ in the same environment, so the code that computes them has changed.
    CHANGED = "changed"
    SEMANTIC = "semantic change"

    @property
    def failed(self) -> bool:
        """Whether a maintainer has to look at it."""
        return self in (Change.CHANGED, Change.SEMANTIC)


@dataclass(frozen=True, slots=True)
class MovedTensor:
    """One tensor with elements that have changed."""

    key: str
    moved: int
    elements: int
    # The farthest move, as a share of the allowed drift.
    farthest: float


@dataclass(frozen=True, slots=True)
class Drift:
    """The change of one trace, with the tensors that moved."""

    change: Change
    tensors: tuple[MovedTensor, ...] = ()
    # Why the traces cannot be compared element by element; empty if they can.
    unlike: str = ""

    def __str__(self) -> str:
        if self.unlike:
            return f"{self.change}: {self.unlike}"
        if not self.tensors:
            return str(self.change)
        worst = max(self.tensors, key=lambda tensor: tensor.farthest)
        return (
            f"{self.change}: {len(self.tensors)} tensors moved, {worst.key} farthest: "
            f"{worst.moved} of {worst.elements} elements, by {worst.farthest:.2g} of what is drift"
        )


def drift(before: Trace, now: Trace) -> Drift:
    """Return how far two fp64 traces of one case are apart; change is NONE, DRIFT or SEMANTIC."""
    difference = structural_difference(before, now)
    if difference:
        return Drift(Change.SEMANTIC, unlike=difference)
    noise = measure_noise({key: (before[key].values, [before[key].values]) for key in before})
    tensors = []
    for key in before:
        count, farthest = measure_move(before[key].values, now[key].values, noise, key)
        if count:
            tensors.append(MovedTensor(key, count, before[key].values.size, farthest))
    if any(tensor.farthest > 1.0 for tensor in tensors):
        return Drift(Change.SEMANTIC, tuple(tensors))
    return Drift(Change.DRIFT if tensors else Change.NONE, tuple(tensors))
