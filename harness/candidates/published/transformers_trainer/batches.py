"""Micro-batches as collators of transformers make them: rows in a table, or in one stream."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.published.wiring.decoder import IGNORED
from harness.candidates.published.wiring.rows import PADDING, padded
from harness.candidates.published.wiring.trainer import TOKENS, Batch
from harness.case import Case

CPU = torch.device("cpu")


def table(case: Case, rows: Sequence[int], multiple: int) -> Batch:
    """Rows padded each on its own side; padding to the multiple stands behind them all."""
    batch = padded(case, list(rows), CPU)
    more = -batch.ids_BS.shape[1] % multiple

    def wider(column_BS: Tensor, value: int) -> Tensor:
        return F.pad(column_BS, (0, more), value=value)

    made = {
        "input_ids": wider(batch.ids_BS, case.pad_id),
        "attention_mask": wider(batch.attended_BS, 0),
        "labels": wider(batch.ids_BS.masked_fill(~batch.targets_BS, IGNORED), IGNORED),
        TOKENS: wider(batch.tokens_BS, PADDING),
    }
    if any(row.side == "left" for row in case.rows):
        # Otherwise the trainer and the model take places in the table for positions.
        made["position_ids"] = wider(batch.positions_BS, 0)
    return made


def stream(case: Case, rows: Sequence[int], multiple: int) -> Batch:
    """All rows in one, told apart by their positions; `DataCollatorWithFlattening` and padding."""
    batch = padded(case, list(rows), CPU).packed
    more = -len(batch.ids_T) % multiple

    def longer(column_T: Tensor, value: int) -> Tensor:
        return F.pad(column_T, (0, more), value=value)[None]

    positions = torch.cat((batch.positions_T, torch.arange(more)))[None]
    return {
        "input_ids": longer(batch.ids_T, case.pad_id),
        "labels": longer(batch.ids_T.masked_fill(~batch.targets_T, IGNORED), IGNORED),
        "position_ids": positions,
        TOKENS: longer(batch.tokens_T, PADDING),
    }
