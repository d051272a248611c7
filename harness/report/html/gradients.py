"""The table of gradients: each as a multiple of the expected one, drawn as a bar."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.report.html.numbers import share

GRADIENT = "grad."
# The least and the largest ratio that is drawn, and the width of a ratio of 1.
LEAST, MOST, UNIT = -1.0, 2.0, 34


@dataclass(frozen=True, slots=True)
class Line:
    """The gradient of one parameter."""

    name: str
    wrong: int
    elements: int
    # The largest error as a share of its budget; empty if nothing is wrong.
    error: str
    # Its size divided by the expected one; None if it should be zero.
    ratio: float | None
    # How often each rank's share of it counts; None for a rank that adds nothing.
    counts: tuple[float | None, ...]

    @property
    def ratio_text(self) -> str:
        if self.ratio is None:
            return "it should be zero" if self.wrong else "zero, as it should be"
        return f"{self.ratio:.6g}"

    @property
    def bar(self) -> tuple[float, float]:
        """The x and the width of its bar, which goes from zero to its ratio."""
        end = min(max(self.ratio or 0.0, LEAST), MOST)
        return x_of(min(end, 0.0)), abs(end) * UNIT


@dataclass(frozen=True, slots=True)
class Table:
    """All gradients in the order in which they are computed, from the output to the input."""

    lines: tuple[Line, ...]
    # The ranks whose shares of gradients are known.
    ranks: tuple[str, ...]
    # If all gradients are off by one factor, a phrase with it; else empty.
    scale: str

    @property
    def x_of_zero(self) -> float:
        return x_of(0.0)

    @property
    def x_of_one(self) -> float:
        return x_of(1.0)

    @property
    def width(self) -> float:
        return x_of(MOST) + 1

    @property
    def first_wrong(self) -> str:
        return next((line.name for line in self.lines if line.wrong), "")

    @property
    def last_right(self) -> str:
        """The gradient before the first wrong one; empty if there is none."""
        names = [line.name for line in self.lines]
        place = names.index(self.first_wrong) if self.first_wrong else 0
        return names[place - 1] if place else ""


def x_of(ratio: float) -> float:
    """Return where a ratio is drawn."""
    return 1 + (ratio - LEAST) * UNIT


def gradient_table(record: Mapping[str, Any]) -> Table | None:
    """Return the table of a failure's gradients; None if none was compared."""
    picture = record["picture"] or {"ratios": {}, "shares": {}}
    shares: Mapping[str, Mapping[str, float]] = picture["shares"]
    ranks = sorted({rank for counts in shares.values() for rank in counts}, key=int)
    lines = [
        Line(
            name=(name := key.removeprefix(GRADIENT)),
            wrong=wrong,
            elements=elements,
            error=share(used) if wrong else "",
            ratio=picture["ratios"].get(key, 1.0),
            counts=tuple(shares.get(name, {}).get(rank) for rank in ranks),
        )
        for key, (wrong, elements, used) in record["keys"].items()
        if key.startswith(GRADIENT)
    ]
    scale = record["scale"]
    name = f", which is {scale['name']}" if scale and scale["name"] else ""
    phrase = f"{scale['factor']:.6g} times the expected one{name}" if scale else ""
    return Table(tuple(lines), tuple(ranks), phrase) if lines else None
