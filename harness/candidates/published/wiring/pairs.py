"""Rows in pairs, as trainers of preferences take them: each is preferred to the next one.

Legend: B rows.
"""

from torch import Tensor

from harness.recipes.batch import Batch


def in_pairs(x_B: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Split numbers of rows: in each replica, row 0, 2, ... is preferred to the next one."""
    rows = zip(batch["replica"].tolist(), batch["row"].tolist(), range(len(x_B)), strict=True)
    ordered_B = x_B[[place for _, _, place in sorted(rows)]]
    return ordered_B[0::2], ordered_B[1::2]
