"""An error that is the same in every case, and too small to be told in each: many cases show it.

In a short dtype one case lets a gradient stray by a few per cent, to either side. What strays to
the same side every time does not average out. So for each tensor it is measured how far the
candidate's leans away from the baseline's, along the oracle:

    lean = <candidate - baseline, oracle> / <oracle, oracle>

It is 0.01 where a gradient is 1.01 times what it should be. The mean over a campaign has a
deviation of its own, because cases scatter: docs/tolerances.md. Needs no torch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt

# Leans are added up as whole numbers of this unit: then parts come to the same in any order.
UNIT = 2.0**-60


@dataclass(slots=True)
class Leaning:
    """How far one tensor leaned in the cases of one dtype."""

    count: int = 0
    # In units, and in units squared.
    total: int = 0
    squares: int = 0

    def add(self, lean: float) -> None:
        units = round(lean / UNIT)
        self.count += 1
        self.total += units
        self.squares += units * units

    def __add__(self, other: "Leaning") -> "Leaning":
        return Leaning(
            self.count + other.count, self.total + other.total, self.squares + other.squares
        )

    @property
    def mean(self) -> float:
        return UNIT * self.total / self.count

    @property
    def deviation(self) -> float:
        """How far the mean may be off by chance."""
        count = self.count
        spread = (count * self.squares - self.total * self.total) / (count * max(count - 1, 1))
        return UNIT * sqrt(spread / count)

    def is_sound(self) -> bool:
        """Whether numbers come to such sums."""
        return self.count > 0 and self.total**2 <= self.count * self.squares


# By dtype and then by tensor.
Leanings = Mapping[str, Mapping[str, Leaning]]


def told(leanings: Leanings) -> Iterator[str]:
    """Each tensor that leans by more than chance, the largest lean first."""
    if not leanings:
        return
    from harness.compare.budget import LEAN_DEVIATIONS, LEAN_LEAST, least_lean

    for dtype, by_tensor in leanings.items():
        lean = {
            name: each
            for name, each in by_tensor.items()
            if each.count >= LEAN_LEAST
            and abs(each.mean) > max(LEAN_DEVIATIONS * each.deviation, least_lean(dtype))
        }
        for name in sorted(lean, key=lambda name: -abs(lean[name].mean)):
            each = lean[name]
            yield (
                f"{name} is {1 + each.mean:.6g} of plain training's in {dtype}, over "
                f"{each.count} tensors, give or take {each.deviation:.2g}"
            )
