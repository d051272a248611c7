"""What the attention of a step can see wrongly, while all else sees what it should.

A hybrid has layers with a state, too. A change of the batch changes these as well, and so does not
predict what goes wrong in its attention alone.

Legend: B rows, S columns, Q queries, K keys; Q and K are columns as well.
"""

from functools import partial

import torch
from torch import Tensor

from harness.case import Case
from harness.recipes.batch import IGNORED, Batch
from harness.recipes.calls import MODEL_MASK
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
        Hypothesis(
            "segment-leak",
            "a row sees the rows before it in the packed stream",
            _behind_others,
        ),
        Hypothesis("pad-leak", "attention sees padding", seen=_padding_too),
        Hypothesis("future-leak", "attention sees later tokens", seen=_later_too),
    ]


def _with_shards(batch: Batch, case: Case, *, shards: Layout) -> Batch:
    return {SHARD: shards(batch, case).contiguous()}


def _behind_others(batch: Batch, _case: Case) -> Batch:
    """Put the rows before each row in front of it, where the model sees them, and no loss does.

    Each layer sees them, also one with a state. Positions stay those of each row.
    """
    real_BS = batch["attention_mask"].bool()
    count_B = real_BS.sum(1)
    end_B = count_B.cumsum(0)
    place_T = torch.arange(int(end_B[-1]), device=real_BS.device)
    is_seen_BT = place_T < end_B[:, None]
    is_own_BT = is_seen_BT & (place_T >= (end_B - count_B)[:, None])
    changed: Batch = {MODEL_MASK: is_seen_BT.to(batch["attention_mask"])}
    for name, x in batch.items():
        if x.shape[:2] != real_BS.shape:
            continue
        shown_BT = is_seen_BT if name in ("input_ids", "position_ids") else is_own_BT
        shown = shown_BT.view(*shown_BT.shape, *[1] * (x.ndim - 2))
        filling = IGNORED if name == "labels" else 0
        changed[name] = torch.where(shown, x[real_BS][None], torch.full_like(x[:1, :1], filling))
    return changed


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
