"""Losses of plain training, on all rows of a global padded batch.

Legend: B rows, S columns, V vocabulary. A number of a target stands in the target's own column.
"""

from collections.abc import Callable
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


def mean(x_BS: Tensor, batch: Batch) -> Tensor:
    """The average over all targets, or zero if there are none."""
    is_target_BS = batch["labels"] != IGNORED
    return (x_BS * is_target_BS).sum() / is_target_BS.sum().clamp(min=1)


def mean_of_row(x_BS: Tensor, batch: Batch) -> Tensor:
    """The average over the targets of each row -> B."""
    is_target_BS = batch["labels"] != IGNORED
    return (x_BS * is_target_BS).sum(1) / is_target_BS.sum(1).clamp(min=1)


def supervised(model: Any, batch: Batch) -> Tensor:
    """Cross entropy, averaged over all targets."""
    return -mean(logps(model, batch), batch)


def surrogate(gain: Tensor, advantage: Tensor, epsilon: float = 0.2) -> tuple[Tensor, Tensor]:
    """PPO's loss, given by how much a log-probability grew, and whether it is clipped."""
    free = gain.exp() * advantage
    near = gain.exp().clamp(1 - epsilon, 1 + epsilon) * advantage
    return -torch.min(free, near), near < free


def grpo(model: Any, batch: Batch) -> Any:
    """GRPO: the surrogate with one advantage for each row, averaged over all targets."""
    gain_BS = logps(model, batch) - batch["old_logps"]
    loss_BS, is_clipped_BS = surrogate(gain_BS, batch["advantages"][:, None])
    return mean(loss_BS, batch), {"clipped": mean(is_clipped_BS, batch)}


def grpo_sequences(model: Any, batch: Batch) -> Any:
    """GRPO as in its paper: averaged over the targets of each row, then over rows."""
    gain_BS = logps(model, batch) - batch["old_logps"]
    loss_BS, is_clipped_BS = surrogate(gain_BS, batch["advantages"][:, None])
    return mean_of_row(loss_BS, batch).mean(), {"clipped": mean(is_clipped_BS, batch)}


def gspo(model: Any, batch: Batch, epsilon: float = 0.2) -> Any:
    """GSPO: one ratio for each row, the geometric mean of those of its targets."""
    gain_B = mean_of_row(logps(model, batch) - batch["old_logps"], batch)
    loss_B, is_clipped_B = surrogate(gain_B, batch["advantages"], epsilon)
    return loss_B.mean(), {"clipped": is_clipped_B.float().mean()}


def cispo(model: Any, batch: Batch, most: float = 1.2) -> Any:
    """CISPO: the ratio, limited and held constant, weighs the log-probability of each target."""
    logps_BS = logps(model, batch)
    ratio_BS = (logps_BS - batch["old_logps"]).exp()
    weight_BS = ratio_BS.clamp(max=most).detach()
    gain_BS = weight_BS * batch["advantages"][:, None] * logps_BS
    return -mean(gain_BS, batch), {"clipped": mean(ratio_BS > most, batch)}


def k1(gain: Tensor) -> Tensor:
    """The KL from a reference, given by how much larger the log-probability is than there."""
    return gain


def k2(gain: Tensor) -> Tensor:
    """Half the square: a biased estimate of the KL that is never negative."""
    return gain.square() / 2


def k3(gain: Tensor) -> Tensor:
    """An unbiased estimate of the KL that is never negative."""
    return (-gain).exp() + gain - 1


def entropy(logits_BSV: Tensor) -> Tensor:
    """The entropy of what is predicted of each token -> BS, zero in the first column."""
    shares_BSV = logits_BSV[:, :-1].float().log_softmax(-1)
    return F.pad(-(shares_BSV.exp() * shares_BSV).sum(-1), (1, 0))


def grpo_regularised(
    model: Any,
    batch: Batch,
    estimate: Callable[[Tensor], Tensor] = k3,
    beta: float = 0.1,
    bonus: float = 0.01,
) -> Any:
    """GRPO with a penalty for the KL from a reference, and a bonus for entropy."""
    logits_BSV = logits(model, batch)
    logps_BS = picked(logits_BSV, batch["labels"])
    gain_BS = logps_BS - batch["old_logps"]
    loss_BS, is_clipped_BS = surrogate(gain_BS, batch["advantages"][:, None])
    tables = {
        "kl": estimate(logps_BS - batch["reference_logps"]),
        "entropy": entropy(logits_BSV),
        "clipped": is_clipped_BS,
    }
    log = {name: mean(x_BS, batch) for name, x_BS in tables.items()}
    return mean(loss_BS, batch) + beta * log["kl"] - bonus * log["entropy"], log


def in_pairs(x_B: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Split numbers of rows: in each replica, row 0, 2, ... is preferred to the next one."""
    rows = zip(batch["replica"].tolist(), batch["row"].tolist(), range(len(x_B)), strict=True)
    ordered_B = x_B[[place for _, _, place in sorted(rows)]]
    return ordered_B[0::2], ordered_B[1::2]


def dpo(model: Any, batch: Batch, beta: float = 0.1) -> Tensor:
    """DPO, by how much more each preferred row gained over the reference than the other one."""
    gain_B = (logps(model, batch) - batch["reference_logps"]).sum(1)
    chosen, rejected = in_pairs(gain_B, batch)
    return -F.logsigmoid(beta * (chosen - rejected)).mean()


def balanced(
    model: Any, batch: Batch, coefficient: float = 0.01, top: int = 2, z: float = 0.0
) -> Any:
    """Cross entropy, and the losses that have experts chosen equally often and logits small."""
    names = ("input_ids", "attention_mask", "position_ids")
    given = {name: batch[name] for name in names}
    out = model(**given, use_cache=False, output_router_logits=True)
    real_T = batch["attention_mask"].flatten().bool()
    router_TE = torch.cat([logits_TE[real_T] for logits_TE in out.router_logits])
    log = {"balance": load_balance(router_TE, top), "z": router_z(router_TE)}
    loss = -mean(picked(out.logits, batch["labels"]), batch)
    return loss + coefficient * log["balance"] + z * log["z"], log


def load_balance(router_TE: Tensor, top: int) -> Tensor:
    """Sum over experts the share of choices times the mean probability, over layers and tokens."""
    shares_TE = router_TE.float().softmax(-1)
    experts = shares_TE.shape[1]
    chosen_TE = F.one_hot(shares_TE.topk(top).indices, experts).sum(1).to(shares_TE.dtype)
    return experts * (chosen_TE.mean(0) * shares_TE.mean(0)).sum()


def router_z(router_TE: Tensor) -> Tensor:
    """The mean square of the logarithm of a router's normaliser, over layers and tokens."""
    return router_TE.float().logsumexp(-1).square().mean()


def values(model: Any, batch: Batch) -> Tensor:
    """What a critic expects of each token -> BS, zero in padding."""
    return logits(model, batch)[..., 0].float() * batch["attention_mask"]


def reward_pairs(model: Any, batch: Batch, centre: float = 0.01) -> Any:
    """Bradley-Terry: the preferred row of a pair has the higher reward.

    The reward of a row is the value of its last token; those of a pair should add up to zero.
    """
    place_S = torch.arange(1, batch["input_ids"].shape[1] + 1, device=batch["input_ids"].device)
    last_B1 = (batch["attention_mask"] * place_S).argmax(1, keepdim=True)
    chosen, rejected = in_pairs(values(model, batch).gather(1, last_B1)[:, 0], batch)
    loss = -F.logsigmoid(chosen - rejected) + centre * (chosen + rejected).square()
    return loss.mean(), {"margin": (chosen - rejected).mean()}


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
    old_BS, new_BS = batch["old_values"], values(model, batch)
    returns_BS = gae(batch) + old_BS
    near_BS = new_BS.clamp(old_BS - epsilon, old_BS + epsilon)
    return mean(torch.max((new_BS - returns_BS) ** 2, (near_BS - returns_BS) ** 2) / 2, batch)


def ppo_actor(model: Any, batch: Batch, epsilon: float = 0.2, beta: float = 0.1) -> Any:
    """PPO's surrogate with whitened advantages of GAE, and a penalty for the KL."""
    advantages_BS = whitened(gae(batch), batch["labels"] != IGNORED)
    gain_BS = logps(model, batch) - batch["old_logps"]
    loss_BS, is_clipped_BS = surrogate(gain_BS, advantages_BS, epsilon)
    log = {"kl": mean(k3(gain_BS), batch), "clipped": mean(is_clipped_BS, batch)}
    return mean(loss_BS, batch) + beta * log["kl"], log


def distilled(model: Any, batch: Batch, *, reverse: bool = False) -> Tensor:
    """KL from a teacher's distribution to the model's, or the reverse, averaged over targets."""
    student_BSV = logits(model, batch)[:, :-1].float().log_softmax(-1)
    teacher_BSV = batch["teacher_logits"][:, :-1].log_softmax(-1)
    p, q = (student_BSV, teacher_BSV) if reverse else (teacher_BSV, student_BSV)
    return mean(F.pad((p.exp() * (p - q)).sum(-1), (1, 0)), batch)
