"""All that can be wrong with a step of a recipe, as far as its plain training can predict it.

Legend: B rows, S columns; `shard_BS` is the shard of each token.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.case import Case
from harness.recipes.batch import IGNORED, Batch
from harness.recipes.columns import Column, Drawn
from harness.recipes.hypothesis import (
    LAYOUTS,
    Hypothesis,
    Layout,
    Parts,
    by_columns,
    columns_of,
    places_of,
    shard_of_stream,
    widened,
)

# The column of a changed batch that has the shard of each token.
SHARD = "shard"


def hypotheses(columns: Mapping[str, Column]) -> dict[str, Hypothesis]:
    """Return all hypotheses about a recipe with these columns, by name, the usual ones first."""
    found = [*_of_labels(), *_of_positions(), *_of_attention()]
    for name, column in columns.items():
        found += _of_column(name, column)
    found += _of_counts()
    return {hypothesis.name: hypothesis for hypothesis in found}


def _of_labels() -> list[Hypothesis]:
    return [
        *(
            Hypothesis(
                "label-lost-at-edge",
                f"labels are shifted inside each shard of {layout}",
                partial(_edges_lost, shards=shards),
            )
            for layout, shards in LAYOUTS.items()
        ),
        Hypothesis(
            "label-rolled-locally",
            "the last label of each shard of columns is the shard's first",
            _rolled_in_shards,
        ),
        Hypothesis("label-shifted", "labels are not shifted", partial(_moved, by=1)),
        Hypothesis("label-shifted", "labels are shifted twice", partial(_moved, by=-1)),
    ]


def _is_edge(shard_BS: Tensor) -> Tensor:
    """Whether a token is the first of its shard, and has one before it in its row."""
    return F.pad(shard_BS[:, 1:] != shard_BS[:, :-1], (1, 0))


def _edges_lost(batch: Batch, case: Case, *, shards: Layout) -> Batch:
    return {"labels": batch["labels"].masked_fill(_is_edge(shards(batch, case)), IGNORED)}


def _rolled_in_shards(batch: Batch, case: Case) -> Batch:
    wide = _evenly_widened(batch, case)
    labels_BS = wide["labels"].clone()
    width = (labels_BS.shape[1] - 1) // case.sp
    firsts = labels_BS[:, :-1:width].clone()
    labels_BS[:, width::width] = firsts
    return wide | {"labels": labels_BS}


def _moved(batch: Batch, case: Case, *, by: int) -> Batch:
    wide = _evenly_widened(batch, case)
    return wide | {"labels": F.pad(wide["labels"], (by, -by), value=IGNORED)}


def _evenly_widened(batch: Batch, case: Case) -> Batch:
    """Pad the table so that all shards of columns are equal, and one column more follows."""
    width = batch["input_ids"].shape[1]
    return widened(batch, case, width + -width % case.sp + 1)


def _of_positions() -> list[Hypothesis]:
    def restarted(batch: Batch, case: Case) -> Batch:
        width = -(-batch["input_ids"].shape[1] // case.sp)
        return {"position_ids": (columns_of(batch) % width).expand_as(batch["input_ids"])}

    def restarted_in_stream(batch: Batch, case: Case) -> Batch:
        return {"position_ids": places_of(batch) % shard_of_stream(batch, case)}

    def run_on(batch: Batch, _case: Case) -> Batch:
        return {"position_ids": places_of(batch)}

    def with_padding(batch: Batch, _case: Case) -> Batch:
        return {"position_ids": columns_of(batch).expand_as(batch["input_ids"])}

    return [
        Hypothesis(anomaly, f"positions {how}", change)
        for anomaly, how, change in (
            ("positions-restarted", "begin again in each shard of columns", restarted),
            (
                "positions-restarted",
                "begin again in each shard of the stream",
                restarted_in_stream,
            ),
            ("positions-run-on", "go on from row to row", run_on),
            ("positions-wrong", "count padding", with_padding),
        )
    ]


def _of_attention() -> list[Hypothesis]:
    def unmasked(batch: Batch, _case: Case) -> Batch:
        return {"attention_mask": torch.ones_like(batch["attention_mask"])}

    return [
        Hypothesis(
            "window-ignored", "no layer has a window", case=lambda case: replace(case, window=None)
        ),
        Hypothesis("pad-leak", "padding is attended", unmasked),
        Hypothesis("attention-cut", "each shard of columns attends to itself alone", _alone),
    ]


def _alone(batch: Batch, case: Case) -> Batch:
    """Make a row of each shard; one more column has the label of the shard's last token."""
    wide = _evenly_widened(batch, case)
    rows, columns = wide["input_ids"].shape
    width, pieces = (columns - 1) // case.sp, []
    for first in range(0, columns - 1, width):
        piece = {
            name: x[:, first : first + width + 1] if x.shape[:2] == (rows, columns) else x
            for name, x in wide.items()
        }
        labels_BS = piece["labels"].clone()
        labels_BS[:, 0] = IGNORED
        pieces.append(piece | {"labels": labels_BS})
    return {name: torch.cat([piece[name] for piece in pieces]) for name in wide}


def _of_counts() -> list[Hypothesis]:
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
    return found


def _apart(batch: Batch, _case: Case, *, keys: tuple[str, ...]) -> Parts:
    """Average the losses of rows that agree in these columns."""
    groups_BK = torch.stack([batch[key] for key in keys], 1)
    parts = [
        {name: x[(groups_BK == group_K).all(1)] for name, x in batch.items()}
        for group_K in groups_BK.unique(dim=0)
    ]
    return [(1 / len(parts), part) for part in parts]


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


def _without_targets(batch: Batch, dropped_BS: Tensor) -> Batch:
    """Drop targets, and what columns have for them; a column of targets is zero elsewhere."""
    is_other_BS = batch["labels"] == IGNORED
    of_targets = {
        name: x.masked_fill(dropped_BS, 0)
        for name, x in batch.items()
        if x.is_floating_point() and x.shape == dropped_BS.shape and not x[is_other_BS].any()
    }
    return batch | of_targets | {"labels": batch["labels"].masked_fill(dropped_BS, IGNORED)}


def _of_column(name: str, column: Column) -> list[Hypothesis]:
    def changed(change: Callable[..., Tensor], **named: int) -> Callable[[Batch, Case], Batch]:
        return lambda batch, case: {name: change(batch[name], batch, case, **named)}

    found = [
        Hypothesis("column-misplaced", f"{name} is that of another row", changed(_of_another))
    ]
    if isinstance(column, Drawn) and column.by == "row":
        return found
    return found + [
        Hypothesis(anomaly, how, change)
        for anomaly, how, change in (
            ("column-shifted", f"{name} is not shifted", changed(_shifted, by=1)),
            ("column-shifted", f"{name} is shifted twice", changed(_shifted, by=-1)),
            ("column-shifted", f"{name} is shifted inside each shard", changed(_without_edges)),
            ("column-misplaced", f"each rank has the first shard of {name}",
             changed(_uncut, behind=0)),
            ("column-misplaced", f"each rank has the first shard of {name}, shifted before",
             changed(_uncut, behind=1)),
        )
    ]  # fmt: skip


def _of_another(x: Tensor, _batch: Batch, _case: Case) -> Tensor:
    return x.roll(1, 0)


def _shifted(x: Tensor, _batch: Batch, _case: Case, *, by: int) -> Tensor:
    return x.roll(by, 1) if x.ndim > 1 else x


def _without_edges(x: Tensor, batch: Batch, case: Case) -> Tensor:
    if x.ndim < 2:
        return x
    is_edge_BS = _is_edge(by_columns(batch, case))
    return x.masked_fill(is_edge_BS.view(*is_edge_BS.shape, *[1] * (x.ndim - 2)), 0)


def _uncut(x: Tensor, batch: Batch, case: Case, *, behind: int) -> Tensor:
    if x.ndim < 2:
        return x
    columns_S = columns_of(batch)
    shard = -(-len(columns_S) // case.sp)
    return x[:, columns_S - (columns_S - behind).clamp(min=0) // shard * shard]
