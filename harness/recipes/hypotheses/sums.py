"""What a step can sum, average or normalise over the wrong tokens.

Legend: B rows, S columns, K keys; `shard_BS` is the shard of each token.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.case import Case
from harness.recipes.batch import IGNORED, Batch
from harness.recipes.hypothesis import LAYOUTS, Hypothesis, Layout, Parts

# The column of a changed batch that has the shard of each token.
SHARD = "shard"


def of_counts() -> list[Hypothesis]:
    found = [
        Hypothesis(
            "denominator-per-part",
            f"the loss of each {part} is computed alone, then averaged",
            parts=partial(_apart, keys=keys),
        )
        for part, keys in (
            ("replica", ("replica",)),
            ("micro-batch", ("replica", "micro_batch")),
        )
    ]
    for layout, shards in LAYOUTS.items():
        change = partial(_with_shards, shards=shards)
        alone = f"the loss of each shard of {layout} is computed alone, then averaged"
        found.append(Hypothesis("denominator-per-rank", alone, change, _by_rank))
    for counted, size in (("targets", _targets), ("rows", _rows)):
        last = f"each replica has the gradients of its last micro-batch alone, by its {counted}"
        found.append(Hypothesis("gradient-partial", last, parts=partial(_last_alone, size=size)))
    return found


def _last_alone(batch: Batch, case: Case, *, size: Callable[[Batch], int]) -> Parts:
    """Weigh the loss of each replica's last micro-batch by its share of the whole batch."""
    last = []
    for _, rows in by_replica(batch, case):
        is_last_B = rows["micro_batch"] == rows["micro_batch"].max()
        last.append({name: x[is_last_B] for name, x in rows.items()})
    whole = max(size(batch), 1)
    return [(size(part) / whole, part) for part in last]


def _targets(batch: Batch) -> int:
    return int((batch["labels"] != IGNORED).sum())


def _rows(batch: Batch) -> int:
    return len(batch["labels"])


def _apart(batch: Batch, _case: Case, *, keys: tuple[str, ...]) -> Parts:
    """Average the losses of rows that agree in these columns."""
    groups_BK = torch.stack([batch[key] for key in keys], 1)
    parts = [
        {name: x[(groups_BK == group_K).all(1)] for name, x in batch.items()}
        for group_K in groups_BK.unique(dim=0)
    ]
    return [(1 / len(parts), part) for part in parts]


def by_replica(batch: Batch, case: Case) -> Parts:
    return _apart(batch, case, keys=("replica",))


def _with_shards(batch: Batch, case: Case, *, shards: Layout) -> Batch:
    """Add the shard that makes each label: that of the token before."""
    return {SHARD: F.pad(shards(batch, case)[:, :-1], (1, 0))}


def _by_rank(batch: Batch, case: Case) -> Parts:
    """Average the losses of the targets of each shard of each replica; all its rows stay."""
    return [
        (share / case.sp, part)
        for shard in range(case.sp)
        for share, part in _apart(
            _without_targets(batch, batch[SHARD] != shard), case, keys=("replica",)
        )
    ]


def of_statistics() -> list[Hypothesis]:
    found = []
    for layout, shards in LAYOUTS.items():
        predicted, own = (partial(add, shards=shards) for add in (_with_shards, with_own_shards))
        each = f"each shard of {layout}"
        found += [
            Hypothesis("statistic-per-rank", f"the loss computes {how}", change, parts)
            for how, change, parts in (
                (f"means over the targets that {each} predicts", predicted, _by_share),
                (f"means over the targets in {each}", own, _by_share),
                (f"with the columns of {each} alone", own, partial(_by_share, blank=True)),
            )
        ]
    return found


def with_own_shards(batch: Batch, case: Case, *, shards: Layout) -> Batch:
    return {SHARD: shards(batch, case)}


def _by_share(batch: Batch, case: Case, *, blank: bool = False) -> Parts:
    """Weigh the loss of each shard of each replica by its number of targets.

    With `blank`, columns are zero on other shards.
    """
    parts = []
    for shard in range(case.sp):
        is_other_BS = batch[SHARD] != shard
        changed = _without_targets(batch, is_other_BS)
        if blank:
            changed |= {
                name: x.masked_fill(is_other_BS.view(*is_other_BS.shape, *[1] * (x.ndim - 2)), 0)
                for name, x in changed.items()
                if x.is_floating_point() and x.shape[:2] == is_other_BS.shape
            }
        parts += [part for _, part in _apart(changed, case, keys=("replica",))]
    counts = [_targets(part) for part in parts]
    return [
        (count / sum(counts), part) for count, part in zip(counts, parts, strict=True) if count
    ] or [(1.0, batch)]


def _without_targets(batch: Batch, dropped_BS: Tensor) -> Batch:
    """Drop targets, and what columns have for them; a column of targets is zero elsewhere."""
    is_other_BS = batch["labels"] == IGNORED
    of_targets = {
        name: x.masked_fill(dropped_BS, 0)
        for name, x in batch.items()
        if x.is_floating_point() and x.shape == dropped_BS.shape and not x[is_other_BS].any()
    }
    return batch | of_targets | {"labels": batch["labels"].masked_fill(dropped_BS, IGNORED)}
