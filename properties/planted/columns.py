"""A step whose loss reads columns of rows, tokens and targets, and faults of it.

`columns.py:right` is right; `columns.py:labels_lost` has that fault.

Legend: B rows, S columns, L columns of this rank.
"""

from functools import partial
from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F

from harness.recipes import Recipe, computed, row, step, target, token
from harness.recipes.batch import IGNORED, Batch
from properties.planted.styles import cut, gathering, padded, sum_gradients, summed, use
from properties.planted.tiny import Tiny, next_labels


def next_losses(logits_BLV: Tensor, labels_BL: Tensor) -> Tensor:
    losses_BL: Tensor = F.cross_entropy(
        logits_BLV.movedim(-1, 1), labels_BL, ignore_index=IGNORED, reduction="none"
    )
    return losses_BL


def old_losses(model: Any, batch: Batch) -> Tensor:
    real_BS = batch["attention_mask"].bool()
    logits_BSV = model(batch["input_ids"], batch["position_ids"], real_BS)
    return next_losses(logits_BSV, next_labels(batch))


def weights(batch: Batch) -> Tensor:
    """The weight of each token's successor in the loss -> BS."""
    of_target_BS = F.pad(batch["weights"][:, 1:], (0, 1))
    gain_BS = batch["gains"][:, None] + 2 * batch["rewards"] + of_target_BS
    return gain_BS * (1 + batch["old"])


def loss(model: Any, batch: Batch) -> Tensor:
    count = (batch["labels"] != IGNORED).sum().clamp(min=1)
    return (old_losses(model, batch) * weights(batch)).sum() / count


RECIPE = Recipe(
    Tiny,
    loss,
    {"gains": row(-2, 2), "rewards": token(), "weights": target(), "old": computed(old_losses)},
)


def train(model: Any, batch: Batch, mesh: DeviceMesh, *, fault: str = "") -> Tensor:
    group = mesh["sp"].get_group()
    use(model, gathering(group))
    if fault == "crashes":
        raise RuntimeError("as planned")
    ids_BL, positions_BL, labels_BL, real_BS = cut(batch, group)
    count = summed((labels_BL != IGNORED).sum()).clamp(min=1)
    if fault == "labels_lost":
        labels_BL = F.pad(labels_BL[:, :-1], (0, 1), value=IGNORED)
    if fault == "gains_of_another_row":
        batch = batch | {"gains": batch["gains"].roll(1)}
    if fault == "gains_rounded":
        batch = batch | {"gains": batch["gains"].round()}
    width = padded(batch, group.size())[0].shape[1]
    weights_BS = F.pad(weights(batch), (0, width - batch["labels"].shape[1]))
    weights_BL = weights_BS.chunk(group.size(), 1)[group.rank()]
    share = (next_losses(model(ids_BL, positions_BL, real_BS), labels_BL) * weights_BL).sum()
    (share / count).backward()
    sum_gradients(model)
    return summed(share / count)


right = step(RECIPE)(train)
labels_lost = step(RECIPE)(partial(train, fault="labels_lost"))
gains_of_another_row = step(RECIPE)(partial(train, fault="gains_of_another_row"))
gains_rounded = step(RECIPE)(partial(train, fault="gains_rounded"))
crashes = step(RECIPE)(partial(train, fault="crashes"))
