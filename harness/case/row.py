"""One row of a ragged batch."""

from dataclasses import dataclass
from typing import Literal, get_args

from harness.case.invalid import InvalidCase

Side = Literal["right", "left"]


@dataclass(frozen=True, slots=True)
class Row:
    """The real tokens of one row: their number, their loss mask, and the side of the padding.

    `mask[t] == "1"` means that token t is a *target*: the loss counts how well the tokens before
    t predict it. The first token of a row has no predecessor, so its bit never counts. It may
    still be set: real masks set it, and real code gets it wrong.
    """

    mask: str
    side: Side = "right"

    def __post_init__(self) -> None:
        if not isinstance(self.mask, str) or not self.mask or self.mask.strip("01"):
            raise InvalidCase.because(
                "mask", repr(self.mask), "a row has one 0 or 1 per token and at least one token"
            )
        if self.side not in get_args(Side):
            raise InvalidCase.because("side", repr(self.side), "padding goes right or left")

    def __len__(self) -> int:
        return len(self.mask)

    def supervised(self) -> tuple[int, ...]:
        """Return the positions of the targets that the loss counts."""
        return tuple(t for t in range(1, len(self.mask)) if self.mask[t] == "1")
