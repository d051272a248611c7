"""What plain training is for verl's actor and critic, written for one device.

Legend: B rows, S columns, V vocabulary, K likeliest tokens. A number of a target stands in the
target's own column.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.recipes import Recipe, computed, losses, row, target
from harness.recipes.batch import IGNORED, Batch
from harness.recipes.families import family

# Of the actor: clipping from both sides and of bad actions, the KL penalty, the bonus for entropy.
LOW, HIGH, DUAL, KL, ENTROPY = 0.2, 0.28, 3.0, 0.1, 0.01
# What seq-mean-token-sum-norm divides the sum of a row by.
SCALE = 8
# Of distillation: how many tokens of a teacher, and the release's own bounds.
TOP, LEAST, MOST = 3, -10.0, 10.0
# Of the critic: the release's own default.
VALUES = 0.5
# How far old weights are from new ones, so that a good part of the ratios is clipped.
OLD, REFERENCE = 2.0**-4, 2.0**-5

# mean(a number of each target, batch) -> one number.
Mean = Callable[[Tensor, Batch], Tensor]


def sequences(x_BS: Tensor, batch: Batch) -> Tensor:
    """seq-mean-token-mean: over the targets of each row, then over rows."""
    return losses.mean_of_row(x_BS, batch).mean()


def scaled_sums(x_BS: Tensor, batch: Batch) -> Tensor:
    """seq-mean-token-sum-norm: the sums of rows, averaged and divided by a constant."""
    return (x_BS * (batch["labels"] != IGNORED)).sum(1).mean() / SCALE


def vanilla(gain_BS: Tensor, advantages_BS: Tensor, _: Batch) -> Tensor:
    """PPO's surrogate; what a bad action loses is bounded by DUAL."""
    ratio_BS = gain_BS.clamp(-20, 20).exp()
    free_BS, near_BS = (
        -advantages_BS * ratio_BS,
        -advantages_BS * ratio_BS.clamp(1 - LOW, 1 + HIGH),
    )
    worse_BS = torch.max(free_BS, near_BS)
    return torch.where(advantages_BS < 0, worse_BS.min(-advantages_BS * DUAL), worse_BS)


def gspo(gain_BS: Tensor, advantages_BS: Tensor, batch: Batch) -> Tensor:
    """GSPO: one ratio for each row, with the gradient of each of its targets."""
    of_row_B1 = losses.mean_of_row(gain_BS, batch).detach()[:, None]
    ratio_BS = (gain_BS - gain_BS.detach() + of_row_B1).clamp(max=10).exp()
    return torch.max(-advantages_BS * ratio_BS, -advantages_BS * ratio_BS.clamp(1 - LOW, 1 + HIGH))


def actor(
    model: Any, batch: Batch, loss: Callable[..., Tensor] = vanilla, mean: Mean = losses.mean
) -> Any:
    """A policy's loss, with a penalty for the KL from a reference and a bonus for entropy."""
    logits_BSV = losses.logits(model, batch)
    logps_BS = losses.picked(logits_BSV, batch["labels"])
    advantages = batch["advantages"]
    advantages_BS = advantages if advantages.ndim > 1 else advantages[:, None].expand_as(logps_BS)
    policy = mean(loss(logps_BS - batch["old_logps"], advantages_BS, batch), batch)
    return regularised(policy, logits_BSV, logps_BS, batch["reference_logps"], batch, mean)


def entropy(logits_BSV: Tensor) -> Tensor:
    """The entropy of what is predicted of each token, by the formula whose rounding verl has."""
    logits_BSV = logits_BSV[:, :-1].float()
    expected_BS = (logits_BSV.softmax(-1) * logits_BSV).sum(-1)
    return F.pad(logits_BSV.logsumexp(-1) - expected_BS, (1, 0))


def regularised(
    policy: Tensor,
    logits_BSV: Tensor,
    logps_BS: Tensor,
    reference_BS: Tensor,
    batch: Batch,
    mean: Mean,
) -> Any:
    gain_BS = (logps_BS - reference_BS).clamp(-20, 20)
    log = {
        "kl": mean(losses.k3(gain_BS).clamp(max=10), batch),
        "entropy": mean(entropy(logits_BSV), batch),
    }
    return policy - ENTROPY * log["entropy"] + KL * log["kl"], log


def on_policy(model: Any, batch: Batch) -> Any:
    """The actor where the policy is its own old one and its own reference."""
    logits_BSV = losses.logits(model, batch)
    logps_BS = losses.picked(logits_BSV, batch["labels"])
    own_BS = logps_BS.detach()
    policy = losses.mean(vanilla(logps_BS - own_BS, batch["advantages"], batch), batch)
    loss, log = regularised(policy, logits_BSV, logps_BS, own_BS, batch, losses.mean)
    log["old_logps"] = losses.mean(own_BS * batch["advantages"], batch)
    log["old_entropy"] = losses.mean(entropy(logits_BSV.detach()), batch)
    return loss, log


def likeliest(logits_SV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities and the ids of a teacher's likeliest tokens."""
    top = logits_SV.log_softmax(-1).topk(min(TOP, logits_SV.shape[-1]))
    return top.values, top.indices


def distilled(model: Any, batch: Batch) -> Any:
    """The actor's loss, and the forward KL from a teacher over the tokens it finds likeliest."""
    loss, log = actor(model, batch)
    teacher_BSK, ids_BSK = likeliest(batch["teacher_logits"])
    student_BSV = losses.logits(model, batch).float().log_softmax(-1)
    teacher_BSK = teacher_BSK.clamp(min=LEAST)
    student_BSK = student_BSV.gather(-1, ids_BSK).clamp(min=LEAST)
    kl_BS = (teacher_BSK.exp() * (teacher_BSK - student_BSK)).sum(-1).clamp(0, MOST)
    log["distillation"] = losses.mean(F.pad(kl_BS[:, :-1], (1, 0)), batch)
    return loss + log["distillation"], log


def values(model: Any, batch: Batch) -> Tensor:
    """What the critic expects before each target -> BS."""
    return F.pad(losses.values(model, batch)[:, :-1], (1, 0))


def critic(model: Any, batch: Batch, mean: Mean = losses.mean) -> Tensor:
    """PPO's clipped loss of values."""
    return clipped(values(model, batch), batch["old_values"], batch["returns"], batch, mean)


def clipped(
    new_BS: Tensor, old_BS: Tensor, returns_BS: Tensor, batch: Batch, mean: Mean
) -> Tensor:
    near_BS = old_BS + (new_BS - old_BS).clamp(-VALUES, VALUES)
    errors_BS = torch.max((new_BS - returns_BS).square(), (near_BS - returns_BS).square())
    return mean(errors_BS, batch) / 2


def own_critic(model: Any, batch: Batch) -> Any:
    """The critic's loss around values that it has itself computed before the step."""
    new_BS = values(model, batch)
    old_BS = new_BS.detach()
    loss = clipped(new_BS, old_BS, old_BS + batch["advantages"], batch, losses.mean)
    return loss, {"old_values": losses.mean(old_BS * batch["advantages"], batch)}


OTHERS = {
    "old_logps": computed(losses.logps, nudge=OLD),
    "reference_logps": computed(losses.logps, nudge=REFERENCE),
}
FOR_TARGETS = {"advantages": target(-2, 2)} | OTHERS
TEACHER = {"teacher_logits": computed(losses.logits)}
FOR_ROWS = {"advantages": row(-2, 2)} | OTHERS
FOR_CRITIC = {"old_values": target(-2, 2), "returns": target(-2, 2)}
POLICY = family("llama")
CRITIC = family("llama", head="TokenClassification")

RECIPES = {
    "actor": Recipe(POLICY, actor, FOR_TARGETS),
    "actor-dynamic": Recipe(POLICY, partial(actor, mean=scaled_sums), FOR_TARGETS),
    "actor-distilled": Recipe(POLICY, distilled, FOR_TARGETS | TEACHER),
    "actor-gspo": Recipe(POLICY, partial(actor, loss=gspo, mean=sequences), FOR_ROWS),
    "actor-on-policy": Recipe(POLICY, on_policy, {"advantages": target(-2, 2)}),
    "critic": Recipe(CRITIC, critic, FOR_CRITIC),
    "critic-dynamic": Recipe(CRITIC, partial(critic, mean=sequences), FOR_CRITIC),
    "critic-own-values": Recipe(CRITIC, own_critic, {"advantages": target(-2, 2)}),
}
