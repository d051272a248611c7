"""The rows of a replica: padded to a table, packed into a stream, or each by itself.

Legend: B rows, S longest row, T tokens of a stream without padding.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.protocol import Rank
from harness.candidates.published.wiring.limits import dealt
from harness.case import Case

# The number of a token that is padding.
PADDING = -1
# The label of a token from which nothing is learnt.
IGNORED = -100


@dataclass(frozen=True, slots=True)
class Packed:
    """Tokens in one stream without padding; every row's positions begin at zero."""

    ids_T: Tensor
    positions_T: Tensor
    targets_T: Tensor
    tokens_T: Tensor

    @property
    def labels(self) -> Tensor:
        """The ids of targets, not shifted; IGNORED elsewhere."""
        return self.ids_T.masked_fill(~self.targets_T, IGNORED)


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
    def labels(self) -> Tensor:
        """The ids of targets, not shifted; IGNORED elsewhere."""
        return self.ids_BS.masked_fill(~self.targets_BS, IGNORED)

    @property
    def packed(self) -> Packed:
        """The rows end to end, without padding."""
        return self._without_padding(slice(None))

    @property
    def rows(self) -> list[Packed]:
        """Each row by itself, without padding."""
        return [self._without_padding(row) for row in range(len(self.ids_BS))]

    def _without_padding(self, rows: int | slice) -> Packed:
        real = self.attended_BS[rows].bool()
        return Packed(
            self.ids_BS[rows][real],
            self.positions_BS[rows][real],
            self.targets_BS[rows][real],
            self.tokens_BS[rows][real],
        )


def micro_batches(case: Case, rank: Rank) -> list[Padded]:
    """Return the micro-batches of this rank's replica, in order."""
    return [padded(case, list(rows), rank.device) for rows in dealt(case, rank.dp_index)]


def padded(case: Case, rows: list[int], device: torch.device) -> Padded:
    """Return these rows in a table, each padded on its own side."""
    size = len(rows), max(len(case.rows[row]) for row in rows)
    ids_BS = torch.full(size, case.pad_id, device=device)
    attended_BS = torch.zeros(size, dtype=torch.int64, device=device)
    positions_BS, targets_BS = torch.zeros_like(ids_BS), torch.zeros_like(attended_BS)
    tokens_BS = torch.full_like(ids_BS, PADDING)
    for b, number in enumerate(rows):
        row = case.rows[number]
        start = size[1] - len(row) if row.side == "left" else 0
        columns = b, slice(start, start + len(row))
        positions = torch.arange(len(row), device=device)
        ids_BS[columns] = torch.tensor(case.ids_of(number), device=device)
        attended_BS[columns] = 1
        positions_BS[columns] = positions
        targets_BS[columns] = torch.tensor([int(bit) for bit in row.mask], device=device)
        targets_BS[b, start] = 0
        tokens_BS[columns] = case.offsets[number] + positions
    return Padded(ids_BS, attended_BS, positions_BS, targets_BS.bool(), tokens_BS)


def shifted(labels: Tensor) -> Tensor:
    """Return the label of each token's next one; a row's last token has none."""
    return F.pad(labels[..., 1:], (0, 1), value=IGNORED)


def target_weights(case: Case, targets_BS: Tensor) -> Tensor:
    """Return the weight of each target of a micro-batch in the loss of the whole batch."""
    counts_B1 = targets_BS.sum(1, keepdim=True).double()
    terms = {
        "token-mean": counts_B1.new_tensor(all_targets(case)),
        "micro-mean": counts_B1.sum() * case.dp * case.micro_batches,
        "row-mean": counts_B1 * len(case.rows),
    }[case.loss]
    return targets_BS / terms.clamp(min=1)


def all_targets(case: Case) -> int:
    """Return how many targets the whole batch has, over all replicas."""
    return sum(row.mask[1:].count("1") for row in case.rows)
