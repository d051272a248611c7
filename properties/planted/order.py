"""Steps that reorder tokens under a mask that ignores the new order."""

import torch

from harness.candidates.own.benign.layout import RoundRobin
from harness.candidates.own.benign.rings import RingZigzag
from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.ulysses import Shard, Ulysses
from harness.candidates.required import OnlyRequired
from harness.case import Case


class InTurn(RoundRobin):
    """Tokens are dealt to ranks in turn; the mask is that of the stream."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        return Ulysses.segments(self, shard, case)


class FromEitherEnd(RingZigzag):
    """Ranks hold pieces of either end; the mask respects rows and ignores the order of tokens."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        right = super().segments(shard, case)
        row_T = torch.arange(len(right.lengths)).repeat_interleave(torch.tensor(right.lengths))
        place_T = torch.cat(self.places(right.total, case.sp)).argsort()
        back_TT = place_T[:, None] - place_T
        near_TT = (back_TT >= 0) & (back_TT < (case.window or right.total))
        return Segments.masked(near_TT & (row_T[:, None] == row_T))


IN_TURN, FROM_EITHER_END = map(OnlyRequired, (InTurn(), FromEitherEnd()))
