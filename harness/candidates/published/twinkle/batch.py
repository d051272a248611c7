"""Rows as twinkle's template and its packing data set leave them."""

from typing import Any

import numpy as np

from harness.candidates.published.twinkle.library import trainer
from harness.candidates.published.wiring.rows import IGNORED, Packed, Padded
from harness.recipes.batch import Batch

# One row: its fields, and the numbers of its tokens.
Feature = dict[str, Any]


def features(batch: Padded, *, joined: bool) -> list[Feature]:
    """Return a feature for each row, or all rows `joined` as the packing data set joins them."""
    rows = [_feature(row) for row in batch.rows]
    if not joined:
        return rows
    return [{name: np.concatenate([row[name] for row in rows]) for name in rows[0]}]


def features_of(batch: Batch) -> list[Feature]:
    """Return a feature for each row of a recipe's batch, in the order of the rows."""
    found = []
    for b in batch["row"].argsort().tolist():
        real_S = batch["attention_mask"][b].bool()
        ids, labels = (batch[name][b][real_S] for name in ("input_ids", "labels"))
        found.append(_encoded({"input_ids": ids.cpu().numpy(), "labels": labels.cpu().numpy()}))
    return found


def of_targets(batch: Batch, name: str) -> list[list[float]]:
    """Return the numbers of each row's targets, as a sampler has those of answers."""
    return [
        batch[name][b][batch["labels"][b] != IGNORED].tolist()
        for b in batch["row"].argsort().tolist()
    ]


def _feature(row: Packed) -> Feature:
    feature = {
        "input_ids": row.ids_T.numpy(),
        "labels": row.labels.numpy(),
        "tokens": row.tokens_T.numpy(),
    }
    return _encoded(feature)


def _encoded(feature: Feature) -> Feature:
    """Add what the template adds, which also moves labels up by one."""
    template = object.__new__(trainer.Template)
    template._add_attention_fields(feature)
    template._roll_labels(feature)
    # Only data sets read the length.
    del feature["length"]
    return feature
