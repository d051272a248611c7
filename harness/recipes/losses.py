"""Losses of plain training, on all rows of a global padded batch.

Legend: B rows, S columns, V vocabulary. A number of a target stands in the target's own column.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.recipes.batch import IGNORED, Batch


def logits(model: Any, batch: Batch) -> Tensor:
    """What the model says of each token's successor -> BSV."""
    names = ("input_ids", "attention_mask", "position_ids")
    logits_BSV: Tensor = model(**{name: batch[name] for name in names}, use_cache=False).logits
    return logits_BSV


def logps(model: Any, batch: Batch) -> Tensor:
    """The log-probability of each target -> BS, zero elsewhere."""
    labels_BS = batch["labels"]
    is_target_BS = labels_BS != IGNORED
    shares_BSV = logits(model, batch)[:, :-1].float().log_softmax(-1)
    picked_BS = shares_BSV.gather(-1, labels_BS[:, 1:].clamp(min=0)[..., None])[..., 0]
    return F.pad(picked_BS, (1, 0)).masked_fill(~is_target_BS, 0)


def supervised(model: Any, batch: Batch) -> Tensor:
    """Cross entropy, averaged over all targets."""
    count = (batch["labels"] != IGNORED).sum().clamp(min=1)
    return -logps(model, batch).sum() / count


def clipped(model: Any, batch: Batch, epsilon: float = 0.2) -> Tensor:
    """PPO's surrogate of each target, with one advantage for each row -> BS."""
    ratio_BS = (logps(model, batch) - batch["old_logps"]).exp()
    gain_B1 = batch["advantages"][:, None]
    return -torch.min(ratio_BS * gain_B1, ratio_BS.clamp(1 - epsilon, 1 + epsilon) * gain_B1)


def grpo(model: Any, batch: Batch) -> Tensor:
    """GRPO: the surrogate, averaged over all targets."""
    is_target_BS = batch["labels"] != IGNORED
    return (clipped(model, batch) * is_target_BS).sum() / is_target_BS.sum().clamp(min=1)


def grpo_sequences(model: Any, batch: Batch) -> Tensor:
    """GRPO as in its paper: averaged over the targets of each row, then over rows."""
    is_target_BS = batch["labels"] != IGNORED
    counts_B = is_target_BS.sum(1).clamp(min=1)
    return ((clipped(model, batch) * is_target_BS).sum(1) / counts_B).mean()


def gspo(model: Any, batch: Batch, epsilon: float = 0.2) -> Tensor:
    """GSPO: one ratio for each row, the geometric mean of those of its targets."""
    is_target_BS = batch["labels"] != IGNORED
    counts_B = is_target_BS.sum(1).clamp(min=1)
    ratio_B = ((logps(model, batch) - batch["old_logps"]).sum(1) / counts_B).exp()
    gain_B = batch["advantages"]
    loss_B = -torch.min(ratio_B * gain_B, ratio_B.clamp(1 - epsilon, 1 + epsilon) * gain_B)
    return loss_B.mean()


def dpo(model: Any, batch: Batch, beta: float = 0.1) -> Tensor:
    """DPO: of rows 0, 2, ... of the batch each is preferred to the next one."""
    gain_B = (logps(model, batch) - batch["reference_logps"]).sum(1)[batch["row"].argsort()]
    return -F.logsigmoid(beta * (gain_B[0::2] - gain_B[1::2])).mean()


def distilled(model: Any, batch: Batch) -> Tensor:
    """Forward KL from a teacher's distribution to the model's, averaged over all targets."""
    is_target_BS = batch["labels"] != IGNORED
    shares_BSV = logits(model, batch)[:, :-1].float().log_softmax(-1)
    teacher_BSV = batch["teacher_logits"][:, :-1].log_softmax(-1)
    kl_BS = (teacher_BSV.exp() * (teacher_BSV - shares_BSV)).sum(-1)
    return (kl_BS * is_target_BS[:, 1:]).sum() / is_target_BS.sum().clamp(min=1)
