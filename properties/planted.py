"""The native step with one fault each: what every property of equivalence has to find."""

from dataclasses import fields, replace

from torch import Tensor

from harness.candidates import Rank
from harness.candidates.native import GatherDialect, LocalDialect
from harness.candidates.native.attention import Segments
from harness.candidates.native.packing import Batch, Shard, Stream
from harness.candidates.native.reduction import sum_gradients
from harness.case import Case
from harness.reference.decoder import Decoder


class LocalRoll(LocalDialect):
    """Labels are shifted after the cut: each rank's last one wraps to its own first token."""

    name = "local-roll"

    def shifted(self, stream: Stream) -> Stream:
        return stream

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        mine = super().shard(case, stream, rank)
        return replace(mine, labels_L=mine.labels_L.roll(-1))


class HeadOrder(GatherDialect):
    """What comes back from the exchange is joined head by head instead of rank by rank."""

    name = "head-order"

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, segments: Segments, case: Case, rank: Rank
    ) -> Tensor:
        out_LNH = super().attend(q, k, v, segments, case, rank)
        joined_LNH: Tensor = out_LNH.unflatten(1, (case.sp, -1)).transpose(1, 2).flatten(1, 2)
        return joined_LNH


class MissingScale(GatherDialect):
    """Gradients are averaged over replicas only: too large by the number of peers."""

    name = "missing-scale"

    def reduce(self, model: Decoder, rank: Rank) -> None:
        sum_gradients(model, rank.world, divide_by=rank.dp.size())


class DroppedTail(LocalDialect):
    """The stream is cut by floor division: what does not divide is lost."""

    name = "dropped-tail"

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        return super().shard(case, without_tail(stream, case.sp), rank)

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        return super().loss(case, batch, without_tail(stream, case.sp), nll_L, targets, rank)


class Strays(LocalDialect):
    """Right but for an error a little larger than fp64 is allowed."""

    name = "strays"

    def reduce(self, model: Decoder, rank: Rank) -> None:
        super().reduce(model, rank)
        gradient = dict(model.named_parameters())["layers.0.q"].grad
        assert gradient is not None
        gradient += 5e-12 * gradient.abs().max()


def without_tail(stream: Stream, sp: int) -> Stream:
    length = len(stream.ids_T)
    kept = length - length % sp or length
    return Stream(**{field.name: getattr(stream, field.name)[:kept] for field in fields(stream)})


STRAYS = Strays()
LOCAL_ROLL = LocalRoll()
HEAD_ORDER = HeadOrder()
MISSING_SCALE = MissingScale()
DROPPED_TAIL = DroppedTail()
