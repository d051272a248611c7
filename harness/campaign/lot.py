"""How a campaign is cut: into lots, and those among shards and pools. Standard library only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")
# So many cases are drawn together, from the number of their lot: nobody draws those of another.
SIZE = 100
# Who has so many lots gets whole ones, of which one more or less makes no difference; else there
# is a share of each lot for everybody.
MANY = 10


@dataclass(frozen=True, slots=True)
class Part:
    """Every n-th case, from the k-th on: small and large ones for each.

    `--shard` names it; in code a shard is what one rank holds of a sequence.
    """

    number: int
    of: int

    def share(self, batch: Sequence[Item]) -> list[Item]:
        """What is in it."""
        return list(batch[self.number - 1 :: self.of])

    def lots(self, count: int, pools: int = 1) -> "list[Lot]":
        """What is judged here of a campaign of so many cases, for pools to take in turn."""
        numbers = range(-(-count // SIZE))
        part = self
        if len(numbers) >= MANY * self.of:
            numbers, part = numbers[self.number - 1 :: self.of], WHOLE
        parts = [part] if len(numbers) >= MANY * pools else part.among(pools)
        lots = [
            Lot(number, min(SIZE, count - SIZE * number), p) for number in numbers for p in parts
        ]
        return [lot for lot in lots if len(lot)]

    def among(self, several: int) -> "list[Part]":
        """The same in several parts."""
        return [Part(self.number + self.of * k, self.of * several) for k in range(several)]

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


WHOLE = Part(1, 1)


@dataclass(frozen=True, slots=True)
class Lot:
    """Cases that are drawn together, or a part of them: a pool is given one at a time."""

    number: int
    size: int
    part: Part = WHOLE

    @property
    def begins(self) -> bool:
        """Whether the first case of the campaign is in it."""
        return self.number == 0 and self.part.number == 1

    def __len__(self) -> int:
        return len(range(self.part.number - 1, self.size, self.part.of))

    def __str__(self) -> str:
        part = "" if self.part == WHOLE else f", part {self.part}"
        return f"lot {self.number}{part}"
