"""Goldens made, and made again without losing what they were."""

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
    """What came of computing goldens again."""

    # The whole store as it is to be.
    goldens: dict[str, Golden] = field(default_factory=dict)
    drifts: dict[str, Drift] = field(default_factory=dict)
    # Goldens that are not written as they were.
    written: list[str] = field(default_factory=list)

    @property
    def changed(self) -> list[str]:
        """Goldens that a change of meaning moved."""
        return [name for name, moved in self.drifts.items() if moved.change is Change.SEMANTIC]


def make(vector: Vector, made: Mapping[str, str], commit: str, reason: str = "") -> Golden:
    """A golden from nothing but its vector; two references must agree on it."""
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
    """Compute all again. Stored bits stay, unless it is accepted that they go.

    A change of meaning is accepted with a reason only. `own` has, by name, goldens of candidates'
    own steps as ranks made them anew.
    """
    remade = Remade()
    for name, golden in goldens.items():
        moved = remade.drifts[name] = drifted(golden, own.get(name))
        may_go = moved.change is Change.DRIFT or bool(reason)
        anew = accept and may_go and moved.change is not Change.NONE
        remade.goldens[name] = golden
        if anew:
            remade.written.append(name)
            remade.goldens[name] = own.get(name) or make(golden.vector, made, commit, reason)
    return remade


def drifted(golden: Golden, anew: Golden | None = None) -> Drift:
    """How far what is stored is from what was made anew, or from what is computed here and now."""
    now = anew.stored.trace if anew else compute(golden.vector.case)
    return drift(golden.stored.trace, now)


def compute(case: Case) -> Trace:
    """What a golden stores: losses and gradients of plain training, in fp64."""
    return reference(case, torch.float64)


def unconfirmed(goldens: Mapping[str, Golden]) -> Iterator[tuple[str, str]]:
    """Which goldens a reference does not confirm, and how they differ from it."""
    for name, golden in goldens.items():
        moved = drifted(golden)
        if moved.change is Change.SEMANTIC:
            yield name, f"the padded reference differs: {moved}"
            continue
        why = doubt(golden.stored.trace, rowwise(golden.vector.case))
        if why:
            yield name, f"the row-wise reference differs: {why}"
