"""What an attention kernel is, and what it is told of the rows in a stream.

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
    """Rows end to end: a token sees itself and what is before it in its row and in its window."""

    # Where each row begins and, behind them, where the last one ends; int32, as kernels want it.
    cu_seqlens: Tensor
    # How many tokens each sees at most, itself included.
    window: int | None
    # Which token sees which, if rows do not say so.
    mask_TT: Tensor | None = None

    @classmethod
    def of(cls, positions_T: Tensor, window: int | None) -> "Segments":
        """A row begins wherever the position is zero, and the first one in any case."""
        begins_T = positions_T == 0
        begins_T[0] = True
        starts = begins_T.nonzero().flatten()
        return cls(F.pad(starts, (0, 1), value=len(positions_T)).int(), window)

    @classmethod
    def masked(cls, allowed_TT: Tensor) -> "Segments":
        """Whatever a mask allows."""
        bounds = torch.tensor([0, len(allowed_TT)], dtype=torch.int32, device=allowed_TT.device)
        return cls(bounds, None, allowed_TT)

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        lengths: list[int] = self.cu_seqlens.diff().tolist()
        return lengths

    @property
    def total(self) -> int:
        """Tokens of the stream."""
        return sum(self.lengths)

    @property
    def window_size(self) -> tuple[int, int]:
        """How many tokens before and behind itself one sees; -1 is all of its row."""
        return -1 if self.window is None else self.window - 1, 0

    @cached_property
    def allowed_TT(self) -> Tensor:  # noqa: N802 - it is a tensor, and called like one
        """All rows as one mask, which grows with the square of the stream."""
        if self.mask_TT is not None:
            return self.mask_TT
        blocks_TT: Tensor = torch.block_diag(*map(self.allowed_in, self.lengths))
        return blocks_TT

    def allowed_in(self, length: int) -> Tensor:
        """Which token sees which in a row of so many -> allowed_SS."""
        every_SS = torch.ones(length, length, dtype=torch.bool, device=self.cu_seqlens.device)
        causal_SS = every_SS.tril()
        return causal_SS if self.window is None else causal_SS.triu(1 - self.window)


# kernel(q_TMH, k_TCH, v_TCH, segments) -> out_TMH.
Kernel = Callable[[Tensor, Tensor, Tensor, Segments], Tensor]
