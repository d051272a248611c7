"""Micro-batches as collators of transformers make them: rows in a table, or in one stream."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.published.wiring.rows import IGNORED, PADDING, padded
from harness.candidates.published.wiring.trainer import TOKENS, Batch
from harness.case import Case

CPU = torch.device("cpu")


def table(case: Case, rows: Sequence[int], multiple: int) -> Batch:
    """Return rows padded each on its own side, with padding to the multiple behind all rows."""
    batch = padded(case, list(rows), CPU)
    more = -batch.ids_BS.shape[1] % multiple

    def wider(column_BS: Tensor, value: int) -> Tensor:
        return F.pad(column_BS, (0, more), value=value)

    columns = {
        "input_ids": wider(batch.ids_BS, case.pad_id),
        "attention_mask": wider(batch.attended_BS, 0),
        "labels": wider(batch.labels, IGNORED),
        TOKENS: wider(batch.tokens_BS, PADDING),
    }
    if any(row.side == "left" for row in case.rows):
        # Otherwise the trainer and the model use columns of the table as positions.
        columns["position_ids"] = wider(batch.positions_BS, 0)
    return columns


def stream(case: Case, rows: Sequence[int], multiple: int) -> Batch:
    """Return all rows in one with positions, as `DataCollatorWithFlattening` does, and padding."""
    batch = padded(case, list(rows), CPU).packed
    more = -len(batch.ids_T) % multiple

    def longer(column_T: Tensor, value: int) -> Tensor:
        return F.pad(column_T, (0, more), value=value)[None]

    positions = torch.cat((batch.positions_T, torch.arange(more)))[None]
    return {
        "input_ids": longer(batch.ids_T, case.pad_id),
        "labels": longer(batch.labels, IGNORED),
        "position_ids": positions,
        TOKENS: longer(batch.tokens_T, PADDING),
    }
