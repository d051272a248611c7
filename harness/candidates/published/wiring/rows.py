"""The rows of a replica, padded to a table or packed into a stream.

Legend: B rows, S longest row, T real tokens of the micro-batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.candidates.protocol import Rank
from harness.candidates.published.wiring.limits import dealt
from harness.case import Case

PADDING = -1


@dataclass(frozen=True, slots=True)
class Padded:
    """A micro-batch as a data loader collates it."""

    ids_BS: Tensor
    attended_BS: Tensor
    positions_BS: Tensor
    # Whether the token in a column is a target; a row's first never is.
    targets_BS: Tensor
    # The global number of each token.
    tokens_BS: Tensor

    @property
    def packed(self) -> "Packed":
        """The rows end to end, without padding."""
        real = self.attended_BS.bool()
        return Packed(
            self.ids_BS[real], self.positions_BS[real], self.targets_BS[real], self.tokens_BS[real]
        )


@dataclass(frozen=True, slots=True)
class Packed:
    """A micro-batch as one stream; every row's positions begin at zero."""

    ids_T: Tensor
    positions_T: Tensor
    targets_T: Tensor
    tokens_T: Tensor


def micro_batches(case: Case, rank: Rank) -> list[Padded]:
    """What this rank's replica trains on, in order."""
    return [padded(case, list(rows), rank.device) for rows in dealt(case, rank.dp_index)]


def padded(case: Case, rows: list[int], device: torch.device) -> Padded:
    """These rows in a table, each padded on its own side."""
    size = len(rows), max(len(case.rows[row]) for row in rows)
    ids_BS = torch.full(size, case.pad_id, device=device)
    attended_BS = torch.zeros(size, dtype=torch.int64, device=device)
    positions_BS, targets_BS = torch.zeros_like(ids_BS), torch.zeros_like(attended_BS)
    tokens_BS = torch.full_like(ids_BS, PADDING)
    for b, number in enumerate(rows):
        row = case.rows[number]
        start = size[1] - len(row) if row.side == "left" else 0
        at = b, slice(start, start + len(row))
        places = torch.arange(len(row), device=device)
        ids_BS[at] = torch.tensor(case.ids_of(number), device=device)
        attended_BS[at] = 1
        positions_BS[at] = places
        targets_BS[at] = torch.tensor([int(bit) for bit in row.mask], device=device)
        targets_BS[b, start] = 0
        tokens_BS[at] = case.offsets[number] + places
    return Padded(ids_BS, attended_BS, positions_BS, targets_BS.bool(), tokens_BS)


def all_targets(case: Case) -> int:
    """How many loss terms the whole batch has, over all replicas."""
    return sum(row.mask[1:].count("1") for row in case.rows)
