"""What the attention of a step can see wrongly, while all else sees what it should.

A hybrid has layers with a state, too. A change of the batch changes these as well, and so does not
predict what goes wrong in its attention alone.

Legend: B rows, S columns, Q queries, K keys; Q and K are columns as well.
"""

from functools import partial

import torch
from torch import Tensor

from harness.case import Case
from harness.recipes.batch import Batch
from harness.recipes.hypothesis import LAYOUTS, Hypothesis, Layout

# The column of a changed batch that has the shard of each token.
SHARD = "shard"


def of_visibility() -> list[Hypothesis]:
    cuts = [
        Hypothesis(
            "attention-cut",
            f"attention sees the own shard of {layout} alone",
            partial(_with_shards, shards=shards),
            seen=_own_shard,
        )
        for layout, shards in LAYOUTS.items()
    ]
    return [
        *cuts,
        Hypothesis("pad-leak", "attention sees padding", seen=_padding_too),
        Hypothesis("future-leak", "attention sees later tokens", seen=_later_too),
    ]


def _with_shards(batch: Batch, case: Case, *, shards: Layout) -> Batch:
    return {SHARD: shards(batch, case).contiguous()}


def _own_shard(seen_B1QK: Tensor, batch: Batch, window: int | None) -> Tensor:
    del window
    shard_BS = batch[SHARD]
    return seen_B1QK & (shard_BS[:, None, :, None] == shard_BS[:, None, None])


def _padding_too(seen_B1QK: Tensor, batch: Batch, window: int | None) -> Tensor:
    before_QK = _distance(batch)
    is_near_QK = (before_QK >= 0) & (before_QK < (window or len(before_QK)))
    return seen_B1QK | is_near_QK & ~_real(batch)


def _later_too(seen_B1QK: Tensor, batch: Batch, window: int | None) -> Tensor:
    del window
    return seen_B1QK | (_distance(batch) < 0) & _real(batch)


def _distance(batch: Batch) -> Tensor:
    """How many columns the key is before the query -> QK."""
    column_S = torch.arange(batch["input_ids"].shape[1], device=batch["input_ids"].device)
    return column_S[:, None] - column_S


def _real(batch: Batch) -> Tensor:
    """Whether a key is no padding -> B11K."""
    return batch["attention_mask"].bool()[:, None, None]
