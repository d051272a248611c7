"""An error that is the same in every case, and too small to be told in each: many cases show it.

In a short dtype one case lets a gradient stray by a few per cent, to either side. What strays to
the same side every time does not average out. So for each tensor it is measured how far the
candidate's leans away from the baseline's, along the oracle:

    lean = <candidate - baseline, oracle> / <oracle, oracle>

It is 0.01 where a gradient is 1.01 times what it should be. The mean over a campaign has a
deviation of its own, because cases scatter: docs/tolerances.md. Needs no torch.
"""

from collections.abc import Iterator
from math import sqrt
from typing import TYPE_CHECKING, Any

import msgspec

from harness.campaign.counts import Whole, together
from harness.campaign.coverage import of_any_layer
from harness.case import Dtype
from harness.untrusted import fitted

if TYPE_CHECKING:
    from harness.compare import Comparison

# Leans are added up as whole numbers of this unit: then parts come to the same in any order.
UNIT = 2.0**-60


class Leaning(msgspec.Struct, forbid_unknown_fields=True):
    """How far one tensor leaned in the cases of one dtype."""

    count: Whole = 0
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


class Leanings(msgspec.Struct, forbid_unknown_fields=True):
    """How far tensors leaned in the cases that passed, by dtype and name."""

    by_dtype: dict[Dtype, dict[str, Leaning]] = {}

    def add(self, comparison: "Comparison") -> None:
        for result in comparison.keys:
            if result.lean is not None:
                by_name = self.by_dtype.setdefault(comparison.case.dtype, {})
                by_name.setdefault(of_any_layer(result.key), Leaning()).add(result.lean)

    def __add__(self, other: "Leanings") -> "Leanings":
        dtypes = {**self.by_dtype, **other.by_dtype}
        return Leanings(
            {
                dtype: together(self.by_dtype.get(dtype, {}), other.by_dtype.get(dtype, {}))
                for dtype in dtypes
            }
        )

    def told(self) -> Iterator[str]:
        """Each tensor that leans by more than chance, the largest lean first."""
        if not self.by_dtype:
            return
        from harness.compare.budget import LEAN_DEVIATIONS, LEAN_LEAST, least_lean

        for dtype, by_name in self.by_dtype.items():
            lean = {
                name: each
                for name, each in by_name.items()
                if each.count >= LEAN_LEAST
                and abs(each.mean) > max(LEAN_DEVIATIONS * each.deviation, least_lean(dtype))
            }
            for name, each in sorted(lean.items(), key=lambda item: -abs(item[1].mean)):
                yield (
                    f"{name} is {1 + each.mean:.6g} of the reference's in {dtype}, over "
                    f"{each.count} tensors, give or take {each.deviation:.2g}"
                )

    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = msgspec.to_builtins(self.by_dtype)
        return record

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Leanings":
        return fitted({"by_dtype": record}, cls)

    def is_sound(self) -> bool:
        leanings = (each for by_name in self.by_dtype.values() for each in by_name.values())
        return all(each.is_sound() for each in leanings)
