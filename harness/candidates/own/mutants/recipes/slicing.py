"""Bugs in which columns a rank holds, where ranks hold a piece of the front and one of the back.

Legend: B rows, S columns, L columns of this rank.
"""

import torch
from torch import Tensor

from harness.candidates.bank import mutant
from harness.candidates.own.shares.layouts import Zigzag
from harness.recipes import ulysses


@mutant("B184", "THUDM/slime#770", needs=("sp>1",), named="attention-cut")
class StatesInTheOrderOfRanks(Zigzag):
    """Rows for states are put together from halves, not from pieces: they stay in ranks' order."""

    family = "qwen3-next"

    def whole(self, x_BL: Tensor) -> Tensor:
        return ulysses.states(x_BL, self.sp)


@mutant("B190", "verl-project/verl#6267", needs=("sp>1",), named="positions-wrong")
class BackCountedFromTheEnd(Zigzag):
    """Positions of the piece at the back are counted from the end of rows without padding."""

    def positions(self) -> Tensor:
        front_BL, back_BL = super().positions().chunk(2, 1)
        padding = -self.batch["labels"].shape[1] % self.pieces()
        return torch.cat((front_BL, (back_BL - padding).clamp(min=0)), 1)


LEFT_OUT: dict[str, str] = {}
