"""Losses of plain training, on all rows of a global padded batch.

Legend: B rows, S columns, V vocabulary. A number of a target stands in the target's own column.
"""

from collections.abc import Sequence
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
    return picked(logits(model, batch), batch["labels"])


def picked(logits_BSV: Tensor, labels_BS: Tensor) -> Tensor:
    """The log-probability of each label, which the token before it predicts -> BS."""
    shares_BSV = logits_BSV[:, :-1].float().log_softmax(-1)
    picked_BS = shares_BSV.gather(-1, labels_BS[:, 1:].clamp(min=0)[..., None])[..., 0]
    return F.pad(picked_BS, (1, 0)).masked_fill(labels_BS == IGNORED, 0)


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


def balanced(model: Any, batch: Batch, coefficient: float = 0.01, top: int = 2) -> Any:
    """Cross entropy, and the loss that has all experts chosen equally often, over all tokens."""
    names = ("input_ids", "attention_mask", "position_ids")
    given = {name: batch[name] for name in names}
    out = model(**given, use_cache=False, output_router_logits=True)
    picked_BS = picked(out.logits, batch["labels"])
    entropy = -picked_BS.sum() / (batch["labels"] != IGNORED).sum().clamp(min=1)
    real_T = batch["attention_mask"].flatten().bool()
    balance = load_balance([logits_TE[real_T] for logits_TE in out.router_logits], top)
    return entropy + coefficient * balance, {"balance": balance}


def load_balance(router_logits: Sequence[Tensor], top: int) -> Tensor:
    """Sum over experts the share of choices times the mean probability, over layers and tokens."""
    shares_TE = torch.cat([*router_logits]).float().softmax(-1)
    experts = shares_TE.shape[1]
    chosen_TE = F.one_hot(shares_TE.topk(top).indices, experts).sum(1).to(shares_TE.dtype)
    return experts * (chosen_TE.mean(0) * shares_TE.mean(0)).sum()


def values(model: Any, batch: Batch) -> Tensor:
    """What a critic expects of each token -> BS, zero in padding."""
    return logits(model, batch)[..., 0].float() * batch["attention_mask"]


def gae(batch: Batch, gamma: float = 0.99, decay: float = 0.95) -> Tensor:
    """Generalised advantages of rewards over the old values -> BS, zero in padding."""
    real_BS, values_BS = batch["attention_mask"], batch["old_values"]
    next_BS = F.pad(values_BS[:, 1:], (0, 1))
    errors_BS = (batch["rewards"] + gamma * next_BS - values_BS) * real_BS
    advantages: list[Tensor] = []
    for error_B in reversed(errors_BS.unbind(1)):
        later = advantages[-1] if advantages else 0.0
        advantages.append(error_B + gamma * decay * later)
    return torch.stack(advantages[::-1], 1) * real_BS


def whitened(x_BS: Tensor, is_target_BS: Tensor) -> Tensor:
    """Numbers of targets with a mean of zero and a variance of one -> BS, zero elsewhere."""
    count = is_target_BS.sum().clamp(min=1)
    centred_BS = (x_BS - (x_BS * is_target_BS).sum() / count) * is_target_BS
    return centred_BS * (centred_BS.square().sum() / count + 1e-8).rsqrt()


def ppo_critic(model: Any, batch: Batch, epsilon: float = 0.2) -> Tensor:
    """PPO's clipped loss of values, averaged over all targets."""
    is_target_BS = batch["labels"] != IGNORED
    old_BS, new_BS = batch["old_values"], values(model, batch)
    returns_BS = gae(batch) + old_BS
    near_BS = new_BS.clamp(old_BS - epsilon, old_BS + epsilon)
    loss_BS = torch.max((new_BS - returns_BS) ** 2, (near_BS - returns_BS) ** 2) / 2
    return (loss_BS * is_target_BS).sum() / is_target_BS.sum().clamp(min=1)


def ppo_actor(model: Any, batch: Batch, epsilon: float = 0.2, beta: float = 0.1) -> Any:
    """PPO's surrogate with whitened advantages of GAE, and the k3 estimate of the KL."""
    is_target_BS = batch["labels"] != IGNORED
    count = is_target_BS.sum().clamp(min=1)
    gain_BS, delta_BS = (
        whitened(gae(batch), is_target_BS),
        batch["old_logps"] - logps(model, batch),
    )
    ratio_BS = (-delta_BS).exp()
    clipped_BS = ratio_BS.clamp(1 - epsilon, 1 + epsilon) * gain_BS
    surrogate = -(torch.min(ratio_BS * gain_BS, clipped_BS) * is_target_BS).sum() / count
    kl = ((delta_BS.exp() - delta_BS - 1) * is_target_BS).sum() / count
    return surrogate + beta * kl, {"kl": kl}


def distilled(model: Any, batch: Batch) -> Tensor:
    """Forward KL from a teacher's distribution to the model's, averaged over all targets."""
    is_target_BS = batch["labels"] != IGNORED
    shares_BSV = logits(model, batch)[:, :-1].float().log_softmax(-1)
    teacher_BSV = batch["teacher_logits"][:, :-1].log_softmax(-1)
    kl_BS = (teacher_BSV.exp() * (teacher_BSV - shares_BSV)).sum(-1)
    return (kl_BS * is_target_BS[:, 1:]).sum() / is_target_BS.sum().clamp(min=1)
