"""Label shift and loss-mask alignment.

Legend: L tokens on this rank, T tokens of the stream.
"""

from dataclasses import replace

from harness.candidates import Rank
from harness.candidates.bank import mutant
from harness.candidates.native import LocalDialect
from harness.candidates.native.packing import Shard, Stream
from harness.case import Case


@mutant(
    "B14",
    "verl-project/verl#6268",
    "verl-project/verl#6068",
    "verl-project/verl#5227",
    needs=("supervised label on the next rank",),
    named="label-rolled-locally",
)
class RolledAfterTheCut(LocalDialect):
    """Labels are shifted after the cut: each rank's last one wraps to its own first token."""

    def shifted(self, stream: Stream) -> Stream:
        return stream

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        mine = super().shard(case, stream, rank)
        return replace(mine, labels_L=mine.labels_L.roll(-1))


LEFT_OUT: dict[str, str] = {}
