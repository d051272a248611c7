"""What a step can do wrong with a column of its recipe.

Legend: B rows, S columns.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn import functional as F

from harness.case import Case
from harness.recipes.batch import IGNORED, Batch
from harness.recipes.columns import Column, Drawn
from harness.recipes.hypothesis import (
    Hypothesis,
    Parts,
    by_columns,
    columns_of,
    is_edge,
    places_of,
    shard_of_stream,
    widened,
)

# The column of a changed batch that has for each token the number of a row.
SPREAD = "spread"


def is_of_rows(column: Column) -> bool:
    """Whether a column is drawn with one number for each row."""
    return isinstance(column, Drawn) and column.by == "row"


def of_column(name: str, column: Column) -> list[Hypothesis]:
    def changed(change: Callable[..., Tensor], **named: int) -> Callable[[Batch, Case], Batch]:
        return lambda batch, case: {name: change(batch[name], batch, case, **named)}

    found = [
        Hypothesis("column-misplaced", f"{name} {how}", changed(change))
        for how, change in (
            ("is that of another row", _of_another),
            ("is sorted by the length of its rows", _sorted),
        )
    ]
    if is_of_rows(column):
        return [
            *found,
            *(
                Hypothesis(
                    "column-misplaced",
                    f"{name} is spread over the packed stream{when}, and each rank has the first "
                    "shard of it",
                    partial(_with_spread, name=name, behind=behind),
                    partial(_by_value, name=name),
                )
                for behind, when in enumerate(("", ", in front of targets"))
            ),
        ]
    found += [
        Hypothesis(anomaly, how, change)
        for anomaly, how, change in (
            ("column-shifted", f"{name} is not shifted", changed(_shifted, by=1)),
            ("column-shifted", f"{name} is shifted twice", changed(_shifted, by=-1)),
            ("column-shifted", f"{name} is shifted inside each shard", changed(_without_edges)),
            ("column-misplaced", f"each rank has the first shard of {name}",
             changed(_uncut, behind=0)),
            ("column-misplaced", f"each rank has the first shard of {name}, shifted before",
             changed(_uncut, behind=1)),
            ("column-misplaced", f"the last of {name} in a row stands in the row's first shard",
             changed(_last_on_first_rank)),
        )
    ]  # fmt: skip
    if isinstance(column, Drawn) and column.by == "target":
        # A row's first token has none, which could stand behind the row before.
        return found
    across = f"{name} is shifted in the packed stream, across rows"
    change = partial(_next_row_behind, name=name)
    return [*found, Hypothesis("column-misplaced", across, change)]


def _with_spread(batch: Batch, case: Case, *, name: str, behind: int) -> Batch:
    """Add which number of a column of rows each token has if no rank takes its own shard of it."""
    real_BS = batch["attention_mask"].bool()
    spread_T = batch[name][real_BS.nonzero()[:, 0]]
    place_BS = (places_of(batch) - behind).clamp(min=0) % shard_of_stream(batch, case)
    return {SPREAD: spread_T[place_BS]}


def _by_value(batch: Batch, _case: Case, *, name: str) -> Parts:
    """Split targets by the number that they have; the loss is an average over targets."""
    is_target_BS = batch["labels"] != IGNORED
    parts = []
    for value in batch[SPREAD][is_target_BS].unique():
        has_value_BS = is_target_BS & (batch[SPREAD] == value)
        labels_BS = batch["labels"].masked_fill(~has_value_BS, IGNORED)
        share = float(has_value_BS.sum() / is_target_BS.sum())
        part = {"labels": labels_BS, name: value.expand_as(batch[name])}
        parts.append((share, batch | part))
    return parts


def of_order() -> list[Hypothesis]:
    """Return what a step does that sorts rows, as for batches of even work, and never back."""
    return [
        Hypothesis(
            "column-misplaced",
            "rows are sorted by length, and what belongs to a row as a whole is not",
            _sorted_rows,
        )
    ]


def in_place_of(name: str, other: str) -> Hypothesis:
    def change(batch: Batch, _case: Case) -> Batch:
        return {name: batch[other]} if batch[other].shape == batch[name].shape else {}

    return Hypothesis("column-misplaced", f"{other} is taken for {name}", change)


def _of_another(x: Tensor, _batch: Batch, _case: Case) -> Tensor:
    return x.roll(1, 0)


def _sorted(x: Tensor, batch: Batch, _case: Case) -> Tensor:
    return x[batch["attention_mask"].sum(1).argsort(stable=True)]


def _sorted_rows(batch: Batch, case: Case) -> Batch:
    """Sort all tables of tokens; a column of rows, and the pairs that rows make, stay."""
    return {name: _sorted(x, batch, case) for name, x in batch.items() if x.ndim > 1}


def _shifted(x: Tensor, _batch: Batch, _case: Case, *, by: int) -> Tensor:
    return x.roll(by, 1) if x.ndim > 1 else x


def _without_edges(x: Tensor, batch: Batch, case: Case) -> Tensor:
    if x.ndim < 2:
        return x
    is_edge_BS = is_edge(by_columns(batch, case))
    return x.masked_fill(is_edge_BS.view(*is_edge_BS.shape, *[1] * (x.ndim - 2)), 0)


def _uncut(x: Tensor, batch: Batch, case: Case, *, behind: int) -> Tensor:
    if x.ndim < 2:
        return x
    columns_S = columns_of(batch)
    shard = -(-len(columns_S) // case.sp)
    return x[:, columns_S - (columns_S - behind).clamp(min=0) // shard * shard]


def _last_on_first_rank(x: Tensor, batch: Batch, case: Case) -> Tensor:
    if x.ndim != 2:
        return x
    real_BS = batch["attention_mask"]
    right_BS, wrong_BS = _last(real_BS), _last(real_BS * (by_columns(batch, case) == 0))
    return x * ~right_BS + (x * right_BS).sum(1, keepdim=True) * wrong_BS


def _next_row_behind(batch: Batch, _case: Case, *, name: str) -> Batch:
    """Put a row's first number behind the row before it, where a loss that shifts reads it."""
    wide = widened(batch, batch["input_ids"].shape[1] + 1)
    x, real_BS = wide[name], wide["attention_mask"].bool()
    if x.ndim != 2:
        return {}
    was_real_BS = F.pad(real_BS[:, :-1], (1, 0))
    first_B1 = (x * (real_BS & ~was_real_BS)).sum(1, keepdim=True)
    next_B1 = F.pad(first_B1[1:], (0, 0, 0, 1))
    return wide | {name: x.where(~(was_real_BS & ~real_BS), next_B1)}


def _last(mask_BS: Tensor) -> Tensor:
    """Whether a token is the last of its row that the mask has."""
    return mask_BS.bool() & (mask_BS.flip(1).cumsum(1).flip(1) == 1)
