"""The rows of a replica, without a data loader."""

from harness.candidates import Rank
from harness.candidates.own.native.rows import Sample
from harness.case import Case


def my_samples(case: Case, rank: Rank) -> list[Sample]:
    """The rows of this rank's replica."""
    return [
        Sample(
            ids=case.ids_of(r),
            loss_mask=tuple(bit == "1" for bit in case.rows[r].mask),
            side=case.rows[r].side,
            tokens=range(case.offsets[r], case.offsets[r + 1]),
        )
        for r in range(rank.dp_index, len(case.rows), case.dp)
    ]
