"""The gradients of one failure as a table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.report.html.numbers import share

GRADIENT = "grad."
# Ratios that are drawn, and how wide one is.
LEAST, MOST, WIDE = -1.0, 2.0, 34


@dataclass(frozen=True, slots=True)
class Line:
    """One parameter."""

    name: str
    wrong: int
    elements: int
    used: str
    # To the expected one; nothing where that is zero.
    ratio: float | None
    # How often each rank's share of it counts; nothing where a rank adds nothing.
    counts: tuple[float | None, ...]

    @property
    def times(self) -> str:
        """What it is of the expected one."""
        if self.ratio is None:
            return "it should be zero" if self.wrong else "zero, as it should be"
        return f"{self.ratio:.6g}"

    @property
    def bar(self) -> tuple[float, float]:
        """Where it begins, and how long it is: from nothing to its ratio."""
        end = min(max(self.ratio or 0.0, LEAST), MOST)
        return across(min(end, 0.0)), abs(end) * WIDE


@dataclass(frozen=True, slots=True)
class Table:
    """All of them in the order in which they are computed, from the output back to the input."""

    lines: tuple[Line, ...]
    # The ranks whose shares of gradients are known.
    ranks: tuple[str, ...]
    # What every gradient is of the reference, where that is one number.
    scale: str

    @property
    def none(self) -> float:
        return across(0.0)

    @property
    def whole(self) -> float:
        return across(1.0)

    @property
    def width(self) -> float:
        return across(MOST) + 1

    @property
    def first_wrong(self) -> str:
        return next((line.name for line in self.lines if line.wrong), "")

    @property
    def last_right(self) -> str:
        """The one before the first wrong one, if one is."""
        names = [line.name for line in self.lines]
        place = names.index(self.first_wrong) if self.first_wrong else 0
        return names[place - 1] if place else ""


def across(ratio: float) -> float:
    """Where a ratio is drawn."""
    return 1 + (ratio - LEAST) * WIDE


def table_of_gradients(record: Mapping[str, Any]) -> Table | None:
    """Nothing where none was compared."""
    picture = record["picture"] or {"ratios": {}, "shares": {}}
    shares: Mapping[str, Mapping[str, float]] = picture["shares"]
    ranks = sorted({rank for counts in shares.values() for rank in counts}, key=int)
    lines = [
        Line(
            name=(name := key.removeprefix(GRADIENT)),
            wrong=wrong,
            elements=elements,
            used=share(used) if wrong else "",
            ratio=picture["ratios"].get(key, 1.0),
            counts=tuple(shares.get(name, {}).get(rank) for rank in ranks),
        )
        for key, (wrong, elements, used) in record["keys"].items()
        if key.startswith(GRADIENT)
    ]
    scale = record["scale"]
    named = f", which is {scale['name']}" if scale and scale["name"] else ""
    told = f"{scale['factor']:.6g} times the expected one{named}" if scale else ""
    return Table(tuple(lines), tuple(ranks), told) if lines else None
