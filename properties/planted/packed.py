"""A step that packs its rows end to end and cuts the stream, and what goes wrong with such a step.

Legend: B rows, S columns, T tokens of the stream, L tokens of this rank, N heads, H head dim.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.recipes import Recipe, row, step
from harness.recipes.batch import IGNORED, Batch
from properties.planted.collectives import Gathered
from properties.planted.styles import sum_gradients, summed, use
from properties.planted.terms import Masked
from properties.planted.tiny import next_labels

COLUMNS = {"advantages": row(1, 2)}


def loss(model: Any, batch: Batch) -> Tensor:
    labels_BS = next_labels(batch)
    logits_BSV = model(batch["input_ids"], batch["position_ids"], batch["attention_mask"])
    weighed_BS = nll(logits_BSV, labels_BS) * batch["advantages"][:, None]
    return weighed_BS.sum() / (labels_BS != IGNORED).sum().clamp(min=1)


def nll(logits_BSV: Tensor, labels_BS: Tensor) -> Tensor:
    return F.cross_entropy(
        logits_BSV.movedim(-1, 1), labels_BS, ignore_index=IGNORED, reduction="none"
    )


def train(model: Any, batch: Batch, mesh: Any, *, fault: str = "") -> Tensor:
    group, real_BS = mesh["sp"].get_group(), batch["attention_mask"].bool()
    row_T = real_BS.nonzero()[:, 0]
    stream = {
        "ids": batch["input_ids"][real_BS],
        "positions": batch["position_ids"][real_BS],
        "labels": next_labels(batch)[real_BS],
        "row": row_T,
        "advantages": batch["advantages"][row_T],
    }
    if fault == "labels_of_the_stream":
        stream["labels"] = F.pad(batch["labels"][real_BS][1:], (0, 1), value=IGNORED)
    pad, filling = -len(row_T) % group.size(), {"labels": IGNORED, "row": -1}
    for name, x_T in stream.items():
        stream[name] = F.pad(x_T, (0, pad), value=filling.get(name, 0))
    mine = {name: x_T.chunk(group.size())[group.rank()] for name, x_T in stream.items()}
    if fault == "advantages_uncut":
        mine["advantages"] = stream["advantages"][: len(mine["ids"])]
    use(model, attending(group, stream["row"], leaks=fault == "rows_leak"))
    logits_1LV = model(mine["ids"][None], mine["positions"][None], real_BS)
    weighed_1L = nll(logits_1LV, mine["labels"][None]) * mine["advantages"]
    share = weighed_1L.sum() / summed((mine["labels"] != IGNORED).sum()).clamp(min=1)
    share.backward()
    sum_gradients(model)
    return summed(share)


def attending(group: Any, row_T: Tensor, *, leaks: bool) -> Any:
    def attend(q: Tensor, k: Tensor, v: Tensor, _real_BS: Tensor) -> Tensor:
        k, v = (Gathered.apply(x, 2, group) for x in (k, v))  # type: ignore[no-untyped-call]
        place_T = torch.arange(len(row_T))
        place_L = place_T.chunk(group.size())[group.rank()]
        is_same_LT = row_T[place_L][:, None] == row_T
        seen_LT = (place_L[:, None] >= place_T) & (is_same_LT | leaks)
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen_LT, -1e9)
        out: Tensor = scores.softmax(-1) @ v
        return out

    return attend


RECIPE = Recipe(Masked, loss, COLUMNS)
right = step(RECIPE)(train)
rows_leak = step(RECIPE)(partial(train, fault="rows_leak"))
advantages_uncut = step(RECIPE)(partial(train, fault="advantages_uncut"))


def collated(batch: Batch) -> Batch:
    """The batch as of a collator that takes all ids for labels."""
    first = batch["attention_mask"].bool() & (batch["position_ids"] == 0)
    return batch | {"labels": torch.where(first, batch["input_ids"], batch["labels"])}


right_if_collated = step(RECIPE)(lambda model, batch, mesh: train(model, collated(batch), mesh))
over_row_ends = partial(train, fault="labels_of_the_stream")
over_row_ends_unseen = step(RECIPE)(over_row_ends)
over_row_ends_seen = step(RECIPE)(
    lambda model, batch, mesh: over_row_ends(model, collated(batch), mesh)
)
