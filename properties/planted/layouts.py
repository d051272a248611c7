"""Three common bugs in each layout of the benign variants that the native step does not have."""

from dataclasses import replace

from torch import Tensor

from harness.candidates import Candidate, Rank
from harness.candidates.own.benign import gradients, held, rings
from harness.candidates.own.benign.partials import attend_partially, join_partials
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
    """Each rank shifts the labels of its own shard."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        return replace(shard, labels_L=shard.ids_L.roll(-1))


class SeesNeighbours(Ulysses):
    """Attention takes the whole stream for one row."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        whole = super().segments(shard, case)
        return replace(whole, cu_seqlens=whole.cu_seqlens[[0, -1]])


class KeysAveraged(Ulysses):
    """Gradients of keys are averaged, not summed, over the ranks that used the keys."""

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


class KeysAsTables(gradients.WeightsFromRank0, held.KeysGatheredEvenly):
    """A correct step that sends keys with two dims; so look weights, which it sends as well."""

    name = "keys-as-tables"

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,  # noqa: ARG002 - one kernel for all
        rank: Rank,
    ) -> Tensor:
        k_TKH, v_TKH = (
            held.ALL_GATHER(x.flatten(1), 0, rank.sp).unflatten(1, x.shape[1:])
            for x in (k_LKH, v_LKH)
        )
        allowed_LT = segments.allowed_TT.chunk(rank.sp.size())[rank.sp_index]
        return join_partials([attend_partially(q_LNH, k_TKH, v_TKH, allowed_LT)], q_LNH)


KEYS_AS_TABLES = KeysAsTables()
FAULTS = (RolledLocally, SeesNeighbours, KeysAveraged)
# Each bug in each layout, under the names of both classes, as attributes of this file.
PLANTED: dict[str, Candidate] = {
    f"{layout.__name__}{fault.__name__}": type(
        f"{layout.__name__}{fault.__name__}", (fault, layout), {}
    )()
    for layout in LAYOUTS
    for fault in FAULTS
}
globals().update(PLANTED)
