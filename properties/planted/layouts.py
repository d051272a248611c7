"""What goes wrong in any layout, in each of those that our own step does not have."""

from dataclasses import replace

from torch import Tensor

from harness.candidates import Candidate, Rank
from harness.candidates.own.benign import held, rings
from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.ulysses import Shard, Stream, Ulysses
from harness.case import Case

LAYOUTS: tuple[type[Ulysses], ...] = (
    held.Uneven,
    held.FrontLoaded,
    held.ZigzagUneven,
    held.Striped,
    held.KeysGatheredEvenly,
    held.QueriesGathered,
    rings.Ring,
    rings.RingZigzag,
    held.HeadParallel,
    rings.RingOfPairs,
)


class RolledLocally(Ulysses):
    """Labels are shifted on each rank by itself."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        mine = super().shard(case, stream, rank)
        return replace(mine, labels_L=mine.ids_L.roll(-1))


class SeesNeighbours(Ulysses):
    """Nobody tells attention where a row ends."""

    def segments(self, mine: Shard, case: Case) -> Segments:
        whole = super().segments(mine, case)
        return replace(whole, cu_seqlens=whole.cu_seqlens[[0, -1]])


class KeysAveraged(Ulysses):
    """Gradients of keys are a mean over those who used them, and not their sum."""

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,
        rank: Rank,
    ) -> Tensor:
        k_LKH.register_hook(lambda grad: grad / rank.sp.size())
        return super().attend(q_LNH, k_LKH, v_LKH, segments, case, rank)


FAULTS = (RolledLocally, SeesNeighbours, KeysAveraged)
# By the names of their classes: as a file's attributes they are candidates.
PLANTED: dict[str, Candidate] = {
    f"{layout.__name__}{fault.__name__}": type(
        f"{layout.__name__}{fault.__name__}", (fault, layout), {}
    )()
    for layout in LAYOUTS
    for fault in FAULTS
}
globals().update(PLANTED)
