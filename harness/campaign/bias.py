"""Find an error that is equal in every case, and too small to see in one: many cases show it.

In a short dtype one case lets a gradient stray by a few per cent, to either side. An error to one
side does not average out over many cases. So each tensor is measured by how far the candidate's
leans away from the baseline's, along the oracle:

    lean = <candidate - baseline, oracle> / <oracle, oracle>

It is 0.01 where a gradient is 1.01 times what it should be. The mean over a campaign has a
deviation of its own, because cases scatter: docs/tolerances.md. Needs no torch.
"""

from collections.abc import Iterator
from math import sqrt
from typing import TYPE_CHECKING, Any

import msgspec

from harness.campaign.counts import Count, add_by_name
from harness.campaign.coverage import without_layer_number
from harness.case import Dtype
from harness.untrusted import fitted

if TYPE_CHECKING:
    from harness.compare import Comparison

# Leans are added up as whole numbers of this unit, so that the order of parts changes no sum.
UNIT = 2.0**-60


class Leaning(msgspec.Struct, forbid_unknown_fields=True):
    """How far one tensor leaned in the cases of one dtype: count, sum, and sum of squares."""

    count: Count = 0
    # In units, and in squared units.
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
        """How far the mean may be off by chance: its standard error."""
        count = self.count
        spread = (count * self.squares - self.total * self.total) / (count * max(count - 1, 1))
        return UNIT * sqrt(spread / count)

    def is_sound(self) -> bool:
        """Whether any numbers can have this count and these sums."""
        return self.count > 0 and self.total**2 <= self.count * self.squares


class Leanings(msgspec.Struct, forbid_unknown_fields=True):
    """How far tensors leaned in the cases that passed, by dtype and name."""

    by_dtype: dict[Dtype, dict[str, Leaning]] = {}

    def add(self, comparison: "Comparison") -> None:
        for result in comparison.measured.keys:
            if result.lean is not None:
                by_name = self.by_dtype.setdefault(comparison.case.dtype, {})
                by_name.setdefault(without_layer_number(result.key), Leaning()).add(result.lean)

    def __add__(self, other: "Leanings") -> "Leanings":
        dtypes = {**self.by_dtype, **other.by_dtype}
        return Leanings(
            {
                dtype: add_by_name(self.by_dtype.get(dtype, {}), other.by_dtype.get(dtype, {}))
                for dtype in dtypes
            }
        )

    def lines(self) -> Iterator[str]:
        """Describe each tensor that leans by more than chance and rounding, the largest first."""
        if not self.by_dtype:
            return
        from harness.compare.budget import LEAN_DEVIATIONS, LEAN_LEAST, least_lean

        for dtype, by_name in self.by_dtype.items():
            leaning = {
                name: tensor
                for name, tensor in by_name.items()
                if tensor.count >= LEAN_LEAST
                and abs(tensor.mean) > max(LEAN_DEVIATIONS * tensor.deviation, least_lean(dtype))
            }
            for name, tensor in sorted(leaning.items(), key=lambda item: -abs(item[1].mean)):
                yield (
                    f"{name} is {1 + tensor.mean:.6g} of the reference's in {dtype}, over "
                    f"{tensor.count} tensors, give or take {tensor.deviation:.2g}"
                )

    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = msgspec.to_builtins(self.by_dtype)
        return record

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Leanings":
        return fitted({"by_dtype": record}, cls)

    def is_sound(self) -> bool:
        leanings = (tensor for by_name in self.by_dtype.values() for tensor in by_name.values())
        return all(tensor.is_sound() for tensor in leanings)
