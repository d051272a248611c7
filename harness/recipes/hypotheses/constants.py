"""What a step can do wrong with a model that its loss takes for constant: a teacher, a reference.

Such a model often runs beside the one that is trained, and is not prepared as that one is.

Legend: B rows, S columns, V vocabulary; T tokens of the packed stream, and the columns of a table
that has the rows before each row as well.
"""

from dataclasses import replace
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.case import Case
from harness.recipes.batch import Batch
from harness.recipes.calls import MODEL_IDS, MODEL_MASK, MODEL_POSITIONS
from harness.recipes.hypotheses.tokens import of_positions
from harness.recipes.hypotheses.visibility import of_visibility
from harness.recipes.hypothesis import (
    Hypothesis,
    by_columns,
    by_stream,
    columns_of,
    places_of,
)

# The columns of a changed batch that have the row and the column whose logits a token is given.
SOURCE_ROW, SOURCE_COLUMN = "source_row", "source_column"
# The column of a token that is given zeros.
NONE = -1
WRAPPED = "around its end"
FILLED = "with zeros beyond its end"
FILLED_IN_SHARDS = "with zeros beyond the end of each shard"


def of_constants() -> list[Hypothesis]:
    shifted = [
        Hypothesis(
            "column-shifted",
            f"logits are those of {whose} {layout}, {edges}",
            partial(change, by=by, edges=edges),
            logits=_moved,
        )
        for (layout, change), (whose, by), edges in product(
            (("in the row", _moved_in_rows), ("in the packed stream", _moved_in_stream)),
            (("the token before", -1), ("the next token", 1)),
            (WRAPPED, FILLED, FILLED_IN_SHARDS),
        )
    ]
    others = [
        Hypothesis(anomaly, how, change, logits=_moved)
        for anomaly, how, change in (
            ("column-misplaced", "logits are those of another row", _of_another_row),
            ("segment-leak", "a row sees the rows before it in the packed stream", _behind_others),
        )
    ]
    positions = [replace(h, change=partial(_for_model, h)) for h in of_positions()]
    visibility = [hypothesis for hypothesis in of_visibility() if hypothesis.seen]
    return [
        replace(h, how=f"in a teacher or reference, {h.how}", without_gradient=True)
        for h in (*shifted, *others, *positions, *visibility)
    ]


def _for_model(hypothesis: Hypothesis, batch: Batch, case: Case) -> Batch:
    """Give the model other positions, and the loss its own."""
    return {MODEL_POSITIONS: hypothesis.change(batch, case)["position_ids"]}


def _behind_others(batch: Batch, case: Case) -> Batch:
    """Give the model the rows before each row in front of it, with the positions of each."""
    real_BS = batch["attention_mask"].bool()
    end_B = real_BS.sum(1).cumsum(0)
    # All micro-batches have tables of one width.
    place_T = torch.arange(case.tokens, device=real_BS.device)
    is_seen_BT = place_T < end_B[:, None]
    ids_BT, positions_BT = (
        F.pad(batch[name][real_BS], (0, case.tokens - int(end_B[-1]))) * is_seen_BT
        for name in ("input_ids", "position_ids")
    )
    return {
        MODEL_IDS: ids_BT,
        MODEL_POSITIONS: positions_BT,
        MODEL_MASK: is_seen_BT.to(batch["attention_mask"]),
        SOURCE_ROW: _sources(batch)[0],
        SOURCE_COLUMN: places_of(batch),
    }


def _of_another_row(batch: Batch, _case: Case) -> Batch:
    row_BS, column_BS = _sources(batch)
    return {SOURCE_ROW: row_BS.roll(1, 0), SOURCE_COLUMN: column_BS}


def _moved_in_rows(batch: Batch, case: Case, *, by: int, edges: str) -> Batch:
    row_BS, column_BS = _sources(batch)
    is_lost_BS = _is_lost(by_columns(batch, case), by, edges)
    column_BS = column_BS.roll(-by, -1).masked_fill(is_lost_BS, NONE)
    return {SOURCE_ROW: row_BS, SOURCE_COLUMN: column_BS}


def _moved_in_stream(batch: Batch, case: Case, *, by: int, edges: str) -> Batch:
    real_BS = batch["attention_mask"].bool()
    row_BS, column_BS = _sources(batch)
    is_lost_T = _is_lost(by_stream(batch, case)[real_BS], by, edges)
    row_T = row_BS[real_BS].roll(-by)
    column_T = column_BS[real_BS].roll(-by).masked_fill(is_lost_T, NONE)
    return {
        SOURCE_ROW: row_BS.masked_scatter(real_BS, row_T),
        SOURCE_COLUMN: column_BS.masked_scatter(real_BS, column_T),
    }


def _sources(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the row and the column of each token's own logits -> BS, BS."""
    ids_BS = batch["input_ids"]
    row_BS = batch["row"][:, None].expand_as(ids_BS)
    return row_BS, columns_of(batch).expand_as(ids_BS)


def _is_lost(shard: Tensor, by: int, edges: str) -> Tensor:
    """Whether what is moved comes from beyond an edge where zeros are filled in."""
    place = torch.arange(shard.shape[-1], device=shard.device) + by
    is_beyond = ((place < 0) | (place >= shard.shape[-1])).expand_as(shard)
    return {
        WRAPPED: torch.zeros_like(is_beyond),
        FILLED: is_beyond,
        FILLED_IN_SHARDS: is_beyond | (shard.roll(-by, -1) != shard),
    }[edges]


def _moved(logits_BSV: Tensor, batch: Batch, _case: Case) -> Tensor:
    """Give each token the logits of its source."""
    source_BS, column_BS = batch[SOURCE_ROW], batch[SOURCE_COLUMN]
    if logits_BSV.ndim != 3 or len(logits_BSV) != len(source_BS):
        return logits_BSV
    row_BS = (source_BS[..., None] == batch["row"]).int().argmax(-1)
    moved_BSV = logits_BSV[row_BS, column_BS.clamp(min=0)]
    return moved_BSV.masked_fill((column_BS == NONE)[..., None], 0)
