"""Other orders in which ranks may hold the columns of rows."""

import torch
from torch import Tensor

from harness.candidates.own.shares.step import Supervised


class Zigzag(Supervised):
    """Each rank holds a piece of the front and its mirror at the back."""

    def pieces(self) -> int:
        return 2 * self.sp.size()

    def order(self, columns: int) -> Tensor:
        pieces = super().order(columns).chunk(self.pieces())
        ranks = range(self.sp.size())
        return torch.cat([torch.cat((pieces[r], pieces[-1 - r])) for r in ranks])


class Striped(Supervised):
    """Columns are dealt to ranks in turn."""

    def order(self, columns: int) -> Tensor:
        return super().order(columns).view(-1, self.sp.size()).T.flatten()
