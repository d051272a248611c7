"""Make goldens of plain training, and compute them again without losing the stored bits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from harness.case import Case
from harness.compare import Change, Drift, doubt, drift
from harness.golden.contents import Golden
from harness.golden.damage import BadGolden
from harness.golden.manifest import Listed
from harness.golden.tensors import Stored
from harness.golden.vector import Vector
from harness.reference import reference, rowwise
from harness.trace import Trace

NONE: Mapping[str, Golden] = {}


@dataclass
class Remade:
    """The goldens of a store after they were computed again."""

    # All goldens of the new store.
    goldens: dict[str, Golden] = field(default_factory=dict)
    drifts: dict[str, Drift] = field(default_factory=dict)
    # The names of those that get new bits.
    written: list[str] = field(default_factory=list)

    @property
    def changed(self) -> list[str]:
        """The names of the goldens that moved by more than drift."""
        return [name for name, moved in self.drifts.items() if moved.change is Change.SEMANTIC]


def make(vector: Vector, made: Mapping[str, str], commit: str, reason: str = "") -> Golden:
    """Make a golden from its vector; raise `BadGolden` unless two references agree on it."""
    trace = compute(vector.case)
    why = doubt(trace, rowwise(vector.case))
    if why:
        raise BadGolden(f"{vector.name}: the padded reference and the row-wise one differ: {why}")
    stored = Stored(vector.name, str(vector.case), trace, dict(made))
    return Golden(vector, stored, Listed("", "", commit, reason))


def remake(
    goldens: Mapping[str, Golden],
    made: Mapping[str, str],
    commit: str,
    *,
    own: Mapping[str, Golden] = NONE,
    accept: bool = False,
    reason: str = "",
) -> Remade:
    """Compute all goldens again. They keep their stored bits unless `accept` is set.

    A golden that moved by more than drift keeps them unless there is also a reason. `own` has the
    own goldens by name, as ranks made them again.
    """
    remade = Remade()
    for name, golden in goldens.items():
        moved = remade.drifts[name] = measure_drift(golden, own.get(name))
        may_change = moved.change is Change.DRIFT or bool(reason)
        remade.goldens[name] = golden
        if accept and may_change and moved.change is not Change.NONE:
            remade.written.append(name)
            remade.goldens[name] = own.get(name) or make(golden.vector, made, commit, reason)
    return remade


def measure_drift(golden: Golden, anew: Golden | None = None) -> Drift:
    """Return how far a golden is from one made again, or from plain training computed now."""
    now = anew.stored.trace if anew else compute(golden.vector.case)
    return drift(golden.stored.trace, now)


def compute(case: Case) -> Trace:
    """Compute what a golden stores: losses and gradients of plain training, in fp64."""
    return reference(case, torch.float64)


def find_unconfirmed(goldens: Mapping[str, Golden]) -> Iterator[tuple[str, str]]:
    """Yield the name of each golden that a reference does not confirm, and how they differ."""
    for name, golden in goldens.items():
        moved = measure_drift(golden)
        if moved.change is Change.SEMANTIC:
            yield name, f"the padded reference differs: {moved}"
            continue
        why = doubt(golden.stored.trace, rowwise(golden.vector.case))
        if why:
            yield name, f"the row-wise reference differs: {why}"
