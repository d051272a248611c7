"""Rows as twinkle's template and its packing data set leave them."""

from typing import Any

import numpy as np

from harness.candidates.published.twinkle.library import trainer
from harness.candidates.published.wiring.rows import Packed, Padded

# One row: its fields, and the numbers of its tokens.
Feature = dict[str, Any]


def features(batch: Padded, *, joined: bool) -> list[Feature]:
    """Return a feature for each row, or all rows `joined` as the packing data set joins them."""
    rows = [_feature(row) for row in batch.rows]
    if not joined:
        return rows
    return [{name: np.concatenate([row[name] for row in rows]) for name in rows[0]}]


def _feature(row: Packed) -> Feature:
    feature = {
        "input_ids": row.ids_T.numpy(),
        "labels": row.labels.numpy(),
        "tokens": row.tokens_T.numpy(),
    }
    template = object.__new__(trainer.Template)
    template._add_attention_fields(feature)
    template._roll_labels(feature)
    # Only data sets read the length.
    del feature["length"]
    return feature
