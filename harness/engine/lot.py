"""Cut a campaign into lots, for its shards and pools. Standard library only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")
# The cases of a lot. They are drawn together, from the number of the lot alone.
SIZE = 100
# With at least so many lots for each, shards and pools take whole lots: one more hardly matters.
# With fewer, each takes a part of every lot: a shard every n-th case, a pool so many in a row.
MANY = 10


@dataclass(frozen=True, slots=True)
class Part:
    """Part `number` of `of` equal parts, counted from 1.

    `--shard` names one. Elsewhere in the code, a shard is what one rank holds of a sequence.
    """

    number: int
    of: int

    def share(self, batch: Sequence[Item]) -> list[Item]:
        """Return every `of`-th item, so that each part has small and large cases."""
        return list(batch[self.number - 1 :: self.of])

    def lots(self, count: int, pools: int = 1) -> "list[Lot]":
        """Return the lots of this shard, in a campaign of `count` cases, for pools to take."""
        numbers = range(-(-count // SIZE))
        part = self
        if len(numbers) >= MANY * self.of:
            numbers, part = numbers[self.number - 1 :: self.of], WHOLE
        pieces = 1 if len(numbers) >= MANY * pools else pools
        lots = [
            Lot(number, min(SIZE, count - SIZE * number), part, Part(k, pieces))
            for number in numbers
            for k in range(1, pieces + 1)
        ]
        return [lot for lot in lots if len(lot)]

    def piece(self, batch: Sequence[Item]) -> list[Item]:
        """Return a run of items; all pieces in order make the batch."""
        start, stop = (len(batch) * k // self.of for k in (self.number - 1, self.number))
        return list(batch[start:stop])

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


WHOLE = Part(1, 1)


@dataclass(frozen=True, slots=True)
class Lot:
    """Cases that are drawn together, or a part of them: the job that a pool gets."""

    number: int
    size: int
    part: Part = WHOLE
    piece: Part = WHOLE

    @property
    def begins(self) -> bool:
        """Whether the first case of the campaign is in it."""
        return self.number == 0 and self.part.number == self.piece.number == 1

    def share(self, whole: Sequence[Item]) -> list[Item]:
        """Return what belongs to it, of everything that was drawn together."""
        return self.piece.piece(self.part.share(whole))

    def __len__(self) -> int:
        return len(self.share(range(self.size)))

    def __str__(self) -> str:
        parts = (("part", self.part), ("piece", self.piece))
        return "".join([f"lot {self.number}", *(f", {n} {p}" for n, p in parts if p != WHOLE)])
