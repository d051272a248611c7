"""Micro-batches as the library's collaters make them, with the numbers of their tokens.

Legend: B rows, S longest row, T tokens of a stream.
"""

from typing import Any

import torch
from nemo_automodel.components.datasets.utils import default_collater, neat_packed_collater
from torch import Tensor

from harness.candidates.published.nemo_automodel.released import NUMBERS, Batch
from harness.candidates.published.wiring import limits
from harness.candidates.published.wiring.packages import folder, lifted
from harness.candidates.published.wiring.rows import IGNORED, Padded, shifted
from harness.case import Case
from harness.recipes.batch import Batch as Table

pack = lifted(
    folder("nemo_automodel.components.datasets.llm") / "neat_packing.py",
    "_build_packed_sample",
    {"CROSS_ENTROPY_IGNORE_IDX": IGNORED},
)


def padded(case: Case, rows: Padded) -> Batch:
    """Return rows in a table."""
    if not rows.attended_BS[:, 0].all():
        # As a user's own collater, because the library's pads behind; it gives positions.
        return columns(rows) | {
            "position_ids": rows.positions_BS,
            "padding_mask": ~rows.attended_BS.bool(),
        }
    samples = examples(rows)
    samples[0]["___PAD_TOKEN_IDS___"] = {"input_ids": case.pad_id, "labels": IGNORED, NUMBERS: 0}
    collated: Batch = default_collater(samples)
    return {key: value.to(rows.ids_BS.device) for key, value in collated.items()}


def of_step(batch: Table, pad_id: int = 0) -> Batch:
    """Return rows of a recipe's batch as the library's collater has them, padded behind."""
    labels_BS = shifted(batch["labels"])
    samples: list[dict[str, Any]] = [
        {
            "input_ids": batch["input_ids"][b][real_S].tolist(),
            "labels": labels_BS[b][real_S].tolist(),
            "attention_mask": [1] * int(real_S.sum()),
        }
        for b in batch["row"].argsort().tolist()
        for real_S in [batch["attention_mask"][b].bool()]
    ]
    samples[0]["___PAD_TOKEN_IDS___"] = {"input_ids": pad_id, "labels": IGNORED}
    collated: Batch = default_collater(samples)
    return {key: value.to(labels_BS.device) for key, value in collated.items()}


def packed(case: Case, rows: Padded) -> Batch:
    """Return one stream by `packing_strategy: neat`, as long as the longest of the case."""
    size = max(sum(map(len, each)) for each in limits.rows_by_micro_batch(case))
    samples = examples(rows)
    numbers_T = [number for sample in samples for number in sample[NUMBERS]]
    collated: Batch = neat_packed_collater([pack(samples, size, case.pad_id)])
    collated[NUMBERS] = torch.tensor([numbers_T + [0] * (size - len(numbers_T))])
    return {key: value.to(rows.ids_BS.device) for key, value in collated.items()}


def columns(rows: Padded) -> dict[str, Tensor]:
    """Return a table as the library's datasets have it, with shifted labels."""
    return {
        "input_ids": rows.ids_BS,
        "labels": shifted(rows.labels),
        "attention_mask": rows.attended_BS,
        NUMBERS: rows.tokens_BS + 1,
    }


def examples(rows: Padded) -> list[dict[str, Any]]:
    """Return each row by itself, as a data set has it."""
    table = columns(rows)
    return [
        {key: column[b][real].tolist() for key, column in table.items()}
        for b, real in enumerate(rows.attended_BS.bool())
    ]
