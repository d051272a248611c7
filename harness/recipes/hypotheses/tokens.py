"""What a step can do wrong with labels, positions and attention.

Legend: B rows, S columns.
"""

from dataclasses import replace
from functools import partial

import torch
from torch.nn import functional as F

from harness.case import Case
from harness.recipes.batch import IGNORED, Batch
from harness.recipes.hypothesis import (
    DEALT,
    LAYOUTS,
    Hypothesis,
    Layout,
    by_dealt_columns,
    columns_of,
    evenly_widened,
    is_edge,
    pieces_of,
    places_of,
    shard_of_stream,
    widened,
)


def of_labels() -> list[Hypothesis]:
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
            "label-lost-at-edge",
            f"labels are shifted inside each shard of {DEALT}, from piece to piece",
            _shifted_when_dealt,
        ),
        Hypothesis(
            "label-rolled-locally",
            "the last label of each shard of columns is the shard's first",
            _rolled_in_shards,
        ),
        Hypothesis("label-shifted", "labels are not shifted", partial(_moved, by=1)),
        Hypothesis("label-shifted", "labels are shifted twice", partial(_moved, by=-1)),
        Hypothesis("label-lost-at-edge", "the last column of labels is dropped", _last_dropped),
        Hypothesis("label-replaced", "the padding behind a row is a label", _padding_behind),
        Hypothesis(
            "mask-replaced", "targets begin behind the longest prompt", _behind_longest_prompt
        ),
        Hypothesis(
            "mask-replaced", "each rank has the first shard of the mask of targets", _targets_uncut
        ),
    ]


def _last_dropped(batch: Batch, _case: Case) -> Batch:
    return {"labels": F.pad(batch["labels"][:, :-1], (0, 1), value=IGNORED)}


def _padding_behind(batch: Batch, _case: Case) -> Batch:
    real_BS = batch["attention_mask"]
    is_behind_BS = F.pad(real_BS[:, :-1], (1, 0)) > real_BS
    return {"labels": torch.where(is_behind_BS, batch["input_ids"], batch["labels"])}


def _behind_longest_prompt(batch: Batch, _case: Case) -> Batch:
    # A row without targets has no prompt that could be longer.
    prompt_B = (batch["labels"] != IGNORED).int().argmax(1)
    return {"labels": batch["labels"].masked_fill(columns_of(batch) < prompt_B.max(), IGNORED)}


def _edges_lost(batch: Batch, case: Case, *, shards: Layout) -> Batch:
    return {"labels": batch["labels"].masked_fill(is_edge(shards(batch, case)), IGNORED)}


def _shifted_when_dealt(batch: Batch, case: Case) -> Batch:
    """Give the end of a rank's first piece the label of its second, and the end of that none."""
    pieces = 2 * case.sp
    wide = widened(batch, -(-batch["input_ids"].shape[1] // pieces) * pieces)
    right_BS, width = wide["labels"], wide["labels"].shape[1] // pieces
    labels_BS = right_BS.clone()
    for piece in range(pieces - 1):
        behind_B, next_piece = labels_BS[:, (piece + 1) * width], pieces - 1 - piece
        behind_B[:] = right_BS[:, next_piece * width] if next_piece > piece else IGNORED
    return wide | {"labels": labels_BS}


def _rolled_in_shards(batch: Batch, case: Case) -> Batch:
    wide = evenly_widened(batch, case, more=1)
    labels_BS = wide["labels"].clone()
    width = (labels_BS.shape[1] - 1) // case.sp
    firsts = labels_BS[:, :-1:width].clone()
    labels_BS[:, width::width] = firsts
    return wide | {"labels": labels_BS}


def _moved(batch: Batch, case: Case, *, by: int) -> Batch:
    wide = evenly_widened(batch, case, more=1)
    return wide | {"labels": F.pad(wide["labels"], (by, -by), value=IGNORED)}


def _targets_uncut(batch: Batch, case: Case) -> Batch:
    """Have each shard's tokens be targets where those of the first shard are."""
    wide = evenly_widened(batch, case, more=1)
    is_target_BS = (wide["labels"] != IGNORED)[:, 1:]
    first_BL = is_target_BS[:, : is_target_BS.shape[1] // case.sp]
    uncut_BS = F.pad(first_BL.repeat(1, case.sp), (1, 0))
    labels_BS = wide["labels"].where(wide["labels"] != IGNORED, wide["input_ids"])
    return wide | {"labels": labels_BS.masked_fill(~uncut_BS, IGNORED)}


def of_positions() -> list[Hypothesis]:
    def restarted(batch: Batch, case: Case) -> Batch:
        width = -(-batch["input_ids"].shape[1] // case.sp)
        return {"position_ids": (columns_of(batch) % width).expand_as(batch["input_ids"])}

    def restarted_in_stream(batch: Batch, case: Case) -> Batch:
        return {"position_ids": places_of(batch) % shard_of_stream(batch, case)}

    def restarted_when_dealt(batch: Batch, case: Case) -> Batch:
        piece_S, width = pieces_of(batch, case)
        place_S = torch.where(piece_S < case.sp, 0, width) + columns_of(batch) % width
        return {"position_ids": place_S.expand_as(batch["input_ids"])}

    def in_order_of_ranks(batch: Batch, case: Case) -> Batch:
        _, width = pieces_of(batch, case)
        before_BS = 2 * width * by_dealt_columns(batch, case)
        return {"position_ids": before_BS + restarted_when_dealt(batch, case)["position_ids"]}

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
            ("positions-restarted", f"begin again in each shard of {DEALT}", restarted_when_dealt),
            ("positions-wrong", f"of {DEALT} go on from rank to rank", in_order_of_ranks),
            ("positions-run-on", "go on from row to row", run_on),
            ("positions-wrong", "count padding", with_padding),
        )
    ]


def of_attention() -> list[Hypothesis]:
    def unmasked(batch: Batch, _case: Case) -> Batch:
        return {"attention_mask": torch.ones_like(batch["attention_mask"])}

    return [
        Hypothesis(
            "window-ignored", "no layer has a window", case=lambda case: replace(case, window=None)
        ),
        Hypothesis(
            "window-ignored", "windows are one token too wide", case=partial(_resized, by=1)
        ),
        Hypothesis(
            "attention-cut", "windows are one token too narrow", case=partial(_resized, by=-1)
        ),
        Hypothesis("pad-leak", "no layer has a mask of padding", unmasked),
        Hypothesis("attention-cut", "each shard of columns is a row of its own", _alone),
    ]


def _resized(case: Case, *, by: int) -> Case:
    return replace(case, window=max(case.window + by, 1)) if case.window else case


def _alone(batch: Batch, case: Case) -> Batch:
    """Make a row of each shard; one more column has the label of the shard's last token."""
    wide = evenly_widened(batch, case, more=1)
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
