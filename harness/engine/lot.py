"""How a campaign is cut: into lots, and those among shards and pools. Standard library only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")
# So many cases are drawn together, from the number of their lot: nobody draws those of another.
SIZE = 100
# With so many lots each, shards and pools take whole ones: one more or less makes no difference.
# With fewer, each takes a share of every lot: a shard every n-th case, a pool so many in a row.
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
        several = 1 if len(numbers) >= MANY * pools else pools
        lots = [
            Lot(number, min(SIZE, count - SIZE * number), part, Part(k, several))
            for number in numbers
            for k in range(1, several + 1)
        ]
        return [lot for lot in lots if len(lot)]

    def piece(self, batch: Sequence[Item]) -> list[Item]:
        """So many in a row; who judges all pieces one after the other judges the batch."""
        start, stop = (len(batch) * k // self.of for k in (self.number - 1, self.number))
        return list(batch[start:stop])

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


WHOLE = Part(1, 1)


@dataclass(frozen=True, slots=True)
class Lot:
    """Cases that are drawn together, or a part of them: a pool is given one at a time."""

    number: int
    size: int
    part: Part = WHOLE
    piece: Part = WHOLE

    @property
    def begins(self) -> bool:
        """Whether the first case of the campaign is in it."""
        return self.number == 0 and self.part.number == self.piece.number == 1

    def share(self, whole: Sequence[Item]) -> list[Item]:
        """What is in it, of all that were drawn together."""
        return self.piece.piece(self.part.share(whole))

    def __len__(self) -> int:
        return len(self.share(range(self.size)))

    def __str__(self) -> str:
        parts = (("part", self.part), ("piece", self.piece))
        return "".join([f"lot {self.number}", *(f", {n} {p}" for n, p in parts if p != WHOLE)])
