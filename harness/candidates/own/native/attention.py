"""The interface of attention kernels, and how they get the boundaries of rows in a stream.

Legend: T all tokens of the padded stream, S tokens of one row, M query heads on this rank, C kv
heads on this rank, H head dim.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Segments:
    """Rows end to end: a token sees itself and the tokens before it, in its row and window."""

    # Where each row begins, followed by where the last row ends; int32, as kernels demand.
    cu_seqlens: Tensor
    # How many tokens each token sees at most, itself included.
    window: int | None
    # If this is given, it alone says which token sees which.
    mask_TT: Tensor | None = None

    @classmethod
    def from_positions(cls, positions_T: Tensor, window: int | None) -> "Segments":
        """Begin a row at each position 0, and one at the first token in any case."""
        begins_T = positions_T == 0
        begins_T[0] = True
        starts = begins_T.nonzero().flatten()
        return cls(F.pad(starts, (0, 1), value=len(positions_T)).int(), window)

    @classmethod
    def masked(cls, allowed_TT: Tensor) -> "Segments":
        """Take which token sees which from a mask instead of from rows."""
        bounds = torch.tensor([0, len(allowed_TT)], dtype=torch.int32, device=allowed_TT.device)
        return cls(bounds, None, allowed_TT)

    @cached_property
    def lengths(self) -> list[int]:
        """The number of tokens in each row."""
        lengths: list[int] = self.cu_seqlens.diff().tolist()
        return lengths

    @property
    def total(self) -> int:
        """The number of tokens in the stream."""
        return sum(self.lengths)

    @property
    def window_size(self) -> tuple[int, int]:
        """How many earlier and later tokens a token sees; -1 stands for its whole row."""
        return -1 if self.window is None else self.window - 1, 0

    @cached_property
    def allowed_TT(self) -> Tensor:  # noqa: N802 - it is a tensor, and called like one
        """All rows as one mask, whose size grows with the square of the stream."""
        if self.mask_TT is not None:
            return self.mask_TT
        blocks_TT: Tensor = torch.block_diag(*map(self.allowed_in_row, self.lengths))
        return blocks_TT

    def allowed_in_row(self, length: int) -> Tensor:
        """Return which token sees which in a row of this length -> allowed_SS."""
        every_SS = torch.ones(length, length, dtype=torch.bool, device=self.cu_seqlens.device)
        causal_SS = every_SS.tril()
        return causal_SS if self.window is None else causal_SS.triu(1 - self.window)


# kernel(q_TMH, k_TCH, v_TCH, segments) -> out_TMH.
Kernel = Callable[[Tensor, Tensor, Tensor, Segments], Tensor]
