"""What a loss can count over the wrong tokens while the model attends as it should.

A *term* is a metric of the loss that is a part of it, such as a KL or the balance of a router.

Legend: B rows, S columns.
"""

from functools import partial

import torch

from harness.case import Case
from harness.recipes.batch import IGNORED, Batch
from harness.recipes.calls import MODEL_MASK
from harness.recipes.hypotheses.sums import SHARD, by_replica, with_own_shards
from harness.recipes.hypothesis import LAYOUTS, Hypothesis, Parts, evenly_widened

# Columns are added to a table until ranks can have equal shards of it.
ADDED = "with what is added to cut it"


def of_masks() -> list[Hypothesis]:
    return [
        Hypothesis(anomaly, how, change)
        for anomaly, how, change in (
            ("pad-leak", "padding counts in the loss, unattended", _with_padding),
            ("pad-leak", f"padding counts in the loss, unattended, {ADDED}", _with_all_padding),
            ("mask-replaced", "the loss has a mask cut as if all rows were one", _of_one_row),
        )
    ]


def _with_padding(batch: Batch, _case: Case) -> Batch:
    mask_BS = batch["attention_mask"]
    return {MODEL_MASK: mask_BS, "attention_mask": torch.ones_like(mask_BS)}


def _with_all_padding(batch: Batch, case: Case) -> Batch:
    wide = evenly_widened(batch, case)
    return wide | _with_padding(wide, case)


def _of_one_row(batch: Batch, case: Case) -> Batch:
    """Have the loss see the mask of each shard where a table of one row would have it."""
    wide = evenly_widened(batch, case)
    mask_BS = wide["attention_mask"]
    shards = [shard.view(len(mask_BS), -1) for shard in mask_BS.flatten().chunk(case.sp)]
    return wide | {MODEL_MASK: mask_BS, "attention_mask": torch.cat(shards, 1)}


def of_terms() -> dict[str, Hypothesis]:
    """Return what can be wrong with a term alone, whatever number it is divided by."""
    found = [
        Hypothesis(
            "statistic-per-rank",
            f"it is computed over the tokens in each shard of {layout}",
            partial(with_own_shards, shards=shards),
            _by_tokens,
        )
        for layout, shards in LAYOUTS.items()
    ]
    found += [
        Hypothesis("mask-replaced", "all tokens with a successor count", _all_targets),
        Hypothesis("pad-leak", f"all columns count, {ADDED}", _all_columns),
    ]
    return {hypothesis.name: hypothesis for hypothesis in found}


def _by_tokens(batch: Batch, case: Case) -> Parts:
    """Average over the shards of each replica; the loss sees the tokens of one at a time."""
    parts = []
    for rows in by_replica(batch):
        mask_BS = rows["attention_mask"]
        for shard in range(case.sp):
            own_BS = mask_BS * (rows[SHARD] == shard)
            if own_BS.any():
                parts.append(rows | {MODEL_MASK: mask_BS, "attention_mask": own_BS})
    return [(1 / len(parts), part) for part in parts]


def _all_targets(batch: Batch, _case: Case) -> Batch:
    is_later_BS = batch["attention_mask"].bool() & (batch["position_ids"] > 0)
    return {"labels": batch["input_ids"].masked_fill(~is_later_BS, IGNORED)}


def _all_columns(batch: Batch, case: Case) -> Batch:
    wide = evenly_widened(batch, case, more=1)
    return wide | {"labels": wide["input_ids"]}
