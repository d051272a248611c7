"""One row of a ragged batch."""

from dataclasses import dataclass
from typing import Literal, get_args

from harness.case.invalid import InvalidCase

Side = Literal["right", "left"]


@dataclass(frozen=True, slots=True)
class Row:
    """Real tokens only: how many, which of them are supervised, where the padding would go.

    `mask[t] == "1"` means that token t is a *target*: the loss counts how well tokens before t
    predict it. The first token of a row has no predecessor, so its bit never counts; it may be
    set all the same, because real masks do that and real code gets it wrong.
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
        """The target positions that count."""
        return tuple(t for t in range(1, len(self.mask)) if self.mask[t] == "1")
