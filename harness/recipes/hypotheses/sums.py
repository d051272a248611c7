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
# The column that has the number of columns of a row's micro-batch.
WIDTH = "width"
# The columns in which the rows of one part agree.
PARTS = {
    "replica": ("replica",),
    "micro-batch": ("replica", "micro_batch"),
    "micro-batch of all replicas": ("micro_batch",),
}
Joined = Callable[[list[Batch]], Parts]
RowWeight = Callable[[Batch, Batch], float]


def of_counts() -> list[Hypothesis]:
    found = []
    for how, joined in (("averaged", _averaged), ("added up", _added)):
        found += [
            Hypothesis(
                "denominator-per-part",
                f"the loss of each {part} is computed alone, then {how}",
                parts=partial(_parts_of, joined=joined, keys=keys),
            )
            for part, keys in PARTS.items()
        ]
        found += [
            Hypothesis(
                "denominator-per-rank",
                f"the loss of each shard of {layout} is computed alone, then {how}",
                partial(_with_shards, shards=shards),
                partial(_by_rank, joined=joined),
            )
            for layout, shards in LAYOUTS.items()
        ]
    found.append(
        Hypothesis(
            "gradient-scaled",
            "the whole loss is divided by the number of micro-batches",
            parts=_divided_by_micro_batches,
        )
    )
    found += [
        Hypothesis(
            "gradient-partial",
            f"{how}, each weighed by its {counted}",
            parts=partial(_fading, size=size, kept=kept),
        )
        for how, kept in FADING.items()
        for counted, size in (("targets", _targets), ("rows", _rows))
    ]
    return found


def of_rows() -> list[Hypothesis]:
    """Return what takes a row alone, which a loss of pairs may refuse."""
    return [
        Hypothesis(
            "denominator-per-part",
            "the loss of each row is computed alone, then averaged",
            parts=partial(_parts_of, joined=_averaged, keys=("row",)),
        ),
        *(
            Hypothesis(
                "weights-wrong",
                f"the loss of each row is computed alone, and weighed by {how}",
                _with_widths,
                partial(_weighed, weight=weight),
            )
            for how, weight in ROW_WEIGHTS.items()
        ),
    ]


def _divided_by_micro_batches(batch: Batch, _case: Case) -> Parts:
    return [(1 / len(batch["micro_batch"].unique()), batch)]


# What each later micro-batch leaves of the gradients before it, given the number of micro-batches.
FADING: dict[str, Callable[[int], float]] = {
    "each replica has the gradients of its last micro-batch alone": lambda _count: 0.0,
    "gradients of earlier micro-batches are divided again": lambda count: 1 / count,
    "gradients of earlier micro-batches are doubled": lambda _count: 2.0,
}


def _fading(
    batch: Batch, _case: Case, *, size: Callable[[Batch], int], kept: Callable[[int], float]
) -> Parts:
    """Weigh micro-batches by their shares of the whole batch, and by what is left of them."""
    whole, weighed = max(size(batch), 1), []
    for rows in by_replica(batch):
        parts = _groups(rows, ("micro_batch",))
        for later, part in enumerate(reversed(parts)):
            weighed.append((kept(len(parts)) ** later * size(part) / whole, part))
    return weighed


def _targets(batch: Batch) -> int:
    return int((batch["labels"] != IGNORED).sum())


def _rows(batch: Batch) -> int:
    return len(batch["labels"])


def _groups(batch: Batch, keys: tuple[str, ...]) -> list[Batch]:
    """Return the rows that agree in these columns."""
    groups_BK = torch.stack([batch[key] for key in keys], 1)
    return [
        {name: x[(groups_BK == group_K).all(1)] for name, x in batch.items()}
        for group_K in groups_BK.unique(dim=0)
    ]


def _averaged(parts: list[Batch]) -> Parts:
    return [(1 / len(parts), part) for part in parts]


def _added(parts: list[Batch]) -> Parts:
    return [(1.0, part) for part in parts]


def _parts_of(batch: Batch, _case: Case, *, joined: Joined, keys: tuple[str, ...]) -> Parts:
    return joined(_groups(batch, keys))


def by_replica(batch: Batch) -> list[Batch]:
    return _groups(batch, ("replica",))


def _with_widths(batch: Batch, _case: Case) -> Batch:
    """Add how many columns the table of each row has."""
    rows, columns = batch["input_ids"].shape
    return {WIDTH: batch["row"].new_full((rows,), columns)}


def _weighed(batch: Batch, _case: Case, *, weight: RowWeight) -> Parts:
    """Weigh the loss of each row; one without targets has no gradient, and may have no loss."""
    rows = _groups(batch, ("row",))
    return [(weight(row, batch), row) for row in rows if _targets(row)] or [(1.0, batch)]


def _tokens(row: Batch) -> int:
    return int(row["attention_mask"].sum())


def _columns(row: Batch) -> int:
    return int(row[WIDTH].sum())


# What the loss of a row may be weighed by, given the row and all rows.
ROW_WEIGHTS: dict[str, RowWeight] = {
    "its targets": lambda row, rows: _targets(row) / _targets(rows),
    "its tokens": lambda row, rows: _tokens(row) / _tokens(rows),
    "its targets divided by its columns": lambda row, rows: (
        _targets(row) / _columns(row) / _rows(rows)
    ),
    "its tokens divided by its targets": lambda row, rows: (
        _tokens(row) / _targets(row) / _rows(rows)
    ),
    "its columns divided by its targets": lambda row, rows: (
        _columns(row) / _targets(row) / _rows(rows)
    ),
}


def _with_shards(batch: Batch, case: Case, *, shards: Layout) -> Batch:
    """Add the shard that makes each label: that of the token before."""
    return {SHARD: F.pad(shards(batch, case)[:, :-1], (1, 0))}


def _by_rank(batch: Batch, case: Case, *, joined: Joined) -> Parts:
    """Take the losses of the targets of each shard of each replica; all its rows stay."""
    return joined(
        [
            part
            for shard in range(case.sp)
            for part in by_replica(_without_targets(batch, batch[SHARD] != shard))
        ]
    )


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
        parts += by_replica(changed)
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
