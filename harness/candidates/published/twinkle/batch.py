"""Rows as twinkle's template and its packing data set leave them."""

from typing import Any

import numpy as np
from torch import Tensor

from harness.candidates.published.twinkle.library import trainer
from harness.candidates.published.wiring.decoder import IGNORED
from harness.candidates.published.wiring.rows import Padded

# One row: its fields, and the numbers of its tokens.
Feature = dict[str, Any]


def features(batch: Padded, *, joined: bool) -> list[Feature]:
    """One for each row; joined, all are one, as the packing data set joins them."""
    rows = [_row(*fields) for fields in zip(*_fields(batch), strict=True)]
    if not joined:
        return rows
    return [{name: np.concatenate([row[name] for row in rows]) for name in rows[0]}]


def _fields(batch: Padded) -> tuple[Tensor, ...]:
    return batch.attended_BS, batch.ids_BS, batch.targets_BS, batch.tokens_BS


def _row(attended: Tensor, ids: Tensor, targets: Tensor, tokens: Tensor) -> Feature:
    real = attended.bool()
    ids, targets = ids[real], targets[real]
    feature = {
        "input_ids": ids.numpy(),
        "labels": ids.masked_fill(~targets, IGNORED).numpy(),
        "tokens": tokens[real].numpy(),
    }
    template = object.__new__(trainer.Template)
    template._add_attention_fields(feature)
    template._roll_labels(feature)
    # Only data sets read the length.
    del feature["length"]
    return feature
