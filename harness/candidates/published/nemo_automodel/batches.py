"""Micro-batches as the library's collaters make them, and the numbers of their tokens beside them.

Legend: B rows, S longest row, T a stream.
"""

from typing import Any

import torch
from nemo_automodel.components.datasets.utils import default_collater, neat_packed_collater
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.published.nemo_automodel.recipe import NUMBERS, Batch
from harness.candidates.published.wiring import limits
from harness.candidates.published.wiring.decoder import IGNORED
from harness.candidates.published.wiring.packages import folder, lifted
from harness.candidates.published.wiring.rows import Padded
from harness.case import Case

pack = lifted(
    folder("nemo_automodel.components.datasets.llm") / "neat_packing.py",
    "_build_packed_sample",
    {"CROSS_ENTROPY_IGNORE_IDX": IGNORED, "torch": torch},
)


def padded(case: Case, rows: Padded) -> Batch:
    """Rows in a table."""
    if not rows.attended_BS[:, 0].all():
        # As a user's own collater, for the library's pads behind; it says where rows begin.
        return columns(rows) | {
            "position_ids": rows.positions_BS,
            "padding_mask": ~rows.attended_BS.bool(),
        }
    samples = examples(rows)
    samples[0]["___PAD_TOKEN_IDS___"] = {"input_ids": case.pad_id, "labels": IGNORED, NUMBERS: 0}
    collated: Batch = default_collater(samples)
    return {key: value.to(rows.ids_BS.device) for key, value in collated.items()}


def packed(case: Case, rows: Padded) -> Batch:
    """One stream, as `packing_strategy: neat` makes it, as long as the longest of the case."""
    size = max(sum(map(len, each)) for each in limits.rows_by_micro_batch(case))
    samples = examples(rows)
    numbers_T = [number for sample in samples for number in sample[NUMBERS]]
    collated: Batch = neat_packed_collater([pack(samples, size, case.pad_id)])
    collated[NUMBERS] = torch.tensor([numbers_T + [0] * (size - len(numbers_T))])
    return {key: value.to(rows.ids_BS.device) for key, value in collated.items()}


def columns(rows: Padded) -> dict[str, Tensor]:
    """A table as the library's datasets have it: labels moved up by one, none at a row's end."""
    ids_BS, real_BS = rows.ids_BS, rows.attended_BS.bool()
    labels_BS = F.pad(ids_BS.masked_fill(~rows.targets_BS, IGNORED)[:, 1:], (0, 1), value=IGNORED)
    # Where a row ends before the table does, the next column is padding.
    return {
        "input_ids": ids_BS,
        "labels": labels_BS.masked_fill(~real_BS, IGNORED),
        "attention_mask": rows.attended_BS,
        NUMBERS: rows.tokens_BS + 1,
    }


def examples(rows: Padded) -> list[dict[str, Any]]:
    """Each row by itself, as a data set has it."""
    table = columns(rows)
    return [
        {key: column[b][real].tolist() for key, column in table.items()}
        for b, real in enumerate(rows.attended_BS.bool())
    ]
