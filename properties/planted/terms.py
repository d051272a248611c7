"""A step whose loss has two more terms, and what can be wrong with each of them alone.

`terms.py:right` is right; `terms.py:padding_in_z` has that fault.

Legend: B rows, S columns, L columns of this rank, V vocabulary.
"""

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from harness.recipes import Recipe, step
from harness.recipes.batch import IGNORED, Batch
from properties.planted.styles import cut, gathering, sum_gradients, summed, total, use
from properties.planted.tiny import Tiny, next_labels

Z, BONUS = 0.02, 0.05
FAULTS = (
    "padding_in_z",
    "prompts_in_entropy",
    "z_of_a_shard",
    "z_missing",
    "entropy_twice",
    "z_not_squared",
)


class Masked(Tiny):
    """Takes the mask of a batch as it is."""

    def forward(self, ids_BL: Tensor, positions_BL: Tensor, mask_BS: Tensor) -> Tensor:
        return super().forward(ids_BL, positions_BL, mask_BS.bool())


def with_terms(model: Any, batch: Batch) -> Any:
    """Cross entropy, the mean square of normalisers over tokens, and entropy over targets."""
    mask_BS, labels_BS = batch["attention_mask"], next_labels(batch)
    logits_BSV = model(batch["input_ids"], batch["position_ids"], mask_BS)
    is_target_BS = labels_BS != IGNORED
    count = is_target_BS.sum().clamp(min=1)
    log = {
        "z": (logits_BSV.logsumexp(-1).square() * mask_BS).sum() / mask_BS.sum(),
        "entropy": (spread(logits_BSV) * is_target_BS).sum() / count,
    }
    return total(logits_BSV, labels_BS) / count + Z * log["z"] - BONUS * log["entropy"], log


def spread(logits_BSV: Tensor) -> Tensor:
    return -(logits_BSV.softmax(-1) * logits_BSV.log_softmax(-1)).sum(-1)


def train(model: Any, batch: Batch, mesh: Any, *, fault: str) -> Any:
    group = mesh["sp"].get_group()
    use(model, gathering(group))
    ids_BL, positions_BL, labels_BL, real_BS = cut(batch, group)
    logits_BLV = model(ids_BL, positions_BL, real_BS)
    is_real_BL, is_target_BL = mine(real_BS, group), labels_BL != IGNORED
    counted_BL, weighed_BL = is_real_BL, is_target_BL
    if fault == "padding_in_z":
        # Without what was added to cut the table.
        counted_BL = mine(even(torch.ones_like(batch["attention_mask"]), group), group)
    if fault == "prompts_in_entropy":
        is_later_BS = batch["attention_mask"].bool() & (batch["position_ids"] > 0)
        weighed_BL = mine(F.pad(even(is_later_BS, group)[:, 1:], (0, 1)), group)
    tokens, targets = summed(counted_BL.sum()), summed(is_target_BL.sum()).clamp(min=1)
    if fault == "z_of_a_shard":
        tokens = counted_BL.sum().clamp(min=1) * summed((counted_BL.sum() > 0).long())
    power = 1 if fault == "z_not_squared" else 2
    z = (logits_BLV.logsumexp(-1) ** power * counted_BL).sum() / tokens
    entropy = (spread(logits_BLV) * weighed_BL).sum() / summed(weighed_BL.sum()).clamp(min=1)
    share = total(logits_BLV, labels_BL) / targets
    share = share + (0.0 if fault == "z_missing" else Z) * z
    share = share - (2 if fault == "entropy_twice" else 1) * BONUS * entropy
    share.backward()
    sum_gradients(model)
    return summed(share), {"z": summed(z), "entropy": summed(entropy)}


def even(x_BS: Tensor, group: dist.ProcessGroup) -> Tensor:
    return F.pad(x_BS, (0, -x_BS.shape[1] % group.size()))


def mine(x_BS: Tensor, group: dist.ProcessGroup) -> Tensor:
    return x_BS.chunk(group.size(), 1)[group.rank()]


@cache
def __getattr__(name: str) -> Any:
    """Return the step that is right, or one with a fault."""
    if name not in {"right", *FAULTS}:
        raise AttributeError(name)
    taken = partial(train, fault=name)
    taken.__name__ = name  # type: ignore[attr-defined]
    return step(Recipe(Masked, with_terms))(taken)
