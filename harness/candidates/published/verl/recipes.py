"""What plain training is for verl's actor and critic, written for one device.

Legend: B rows, S columns, V vocabulary, K likeliest tokens. A number of a target stands in the
target's own column.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.published.verl.formulas import DUAL, KLS, LOSSES, LOW, MEANS, Mean
from harness.candidates.published.verl.settings import ACTOR, CRITIC
from harness.candidates.published.wiring.actions import Actions
from harness.recipes import Recipe, computed, losses, target
from harness.recipes.batch import Batch
from harness.recipes.columns import Column
from harness.recipes.families import any_family

# The weight of the KL from a reference.
KL = 0.1
# Of distillation: how many tokens of a teacher, and the release's own bounds.
TOP, LEAST, MOST = 3, -10.0, 10.0
# How far old weights are from new ones, so that a good part of the ratios is clipped.
OLD, REFERENCE = 2.0**-4, 2.0**-5


def actor(
    model: Any,
    batch: Batch,
    *,
    loss_mode: str,
    loss_agg_mode: str,
    clip_ratio_high: float,
    entropy_coeff: float,
    use_kl_loss: bool,
    kl_loss_type: str,
) -> Any:
    """A policy's loss, with a bonus for entropy and a penalty for the KL from a reference."""
    logits_BSV = losses.logits(model, batch)
    logps_BS = losses.picked(logits_BSV, batch["labels"])
    old_BS = batch.get("old_logps", logps_BS.detach())
    reference_BS = batch.get("reference_logps", logps_BS.detach())
    mean = MEANS[loss_agg_mode]
    of_policy = MEANS["seq-mean-token-mean"] if loss_mode == "sapo" else mean
    actions = Actions(logps_BS, old_BS, batch["advantages"], batch, LOW, clip_ratio_high, DUAL)
    loss, log = of_policy(LOSSES[loss_mode](actions), batch), {}
    if entropy_coeff:
        log["entropy"] = mean(entropy(logits_BSV), batch)
        loss = loss - entropy_coeff * log["entropy"]
    if use_kl_loss:
        log["kl"] = mean(KLS[kl_loss_type](logps_BS - reference_BS), batch)
        loss = loss + KL * log["kl"]
    return loss, log


def entropy(logits_BSV: Tensor) -> Tensor:
    """The entropy of what is predicted of each token, by the formula whose rounding verl has."""
    logits_BSV = logits_BSV[:, :-1].float()
    expected_BS = (logits_BSV.softmax(-1) * logits_BSV).sum(-1)
    return F.pad(logits_BSV.logsumexp(-1) - expected_BS, (1, 0))


def on_policy(model: Any, batch: Batch, **settings: Any) -> Any:
    """The actor where the policy is its own old one and its own reference."""
    loss, log = actor(model, batch, **settings)
    logits_BSV = losses.logits(model, batch).detach()
    own_BS = losses.picked(logits_BSV, batch["labels"])
    log["old_logps"] = losses.mean(own_BS * batch["advantages"], batch)
    log["old_entropy"] = losses.mean(entropy(logits_BSV), batch)
    return loss, log


def likeliest(logits_SV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities and the ids of a teacher's likeliest tokens."""
    top = logits_SV.log_softmax(-1).topk(min(TOP, logits_SV.shape[-1]))
    return top.values, top.indices


def distilled(model: Any, batch: Batch, **settings: Any) -> Any:
    """The actor's loss, and the forward KL from a teacher over the tokens it finds likeliest."""
    loss, log = actor(model, batch, **settings)
    teacher_BSK, ids_BSK = likeliest(batch["teacher_logits"])
    student_BSV = losses.logits(model, batch).float().log_softmax(-1)
    teacher_BSK = teacher_BSK.clamp(min=LEAST)
    student_BSK = student_BSV.gather(-1, ids_BSK).clamp(min=LEAST)
    kl_BS = (teacher_BSK.exp() * (teacher_BSK - student_BSK)).sum(-1).clamp(0, MOST)
    log["distillation"] = MEANS[settings["loss_agg_mode"]](F.pad(kl_BS[:, :-1], (1, 0)), batch)
    return loss + log["distillation"], log


def values(model: Any, batch: Batch) -> Tensor:
    """What the critic expects before each target -> BS."""
    return F.pad(losses.values(model, batch)[:, :-1], (1, 0))


def critic(model: Any, batch: Batch, *, loss_agg_mode: str, cliprange_value: float) -> Tensor:
    """PPO's clipped loss of values."""
    new_BS, old_BS = values(model, batch), batch["old_values"]
    return clipped(new_BS, old_BS, batch["returns"], batch, MEANS[loss_agg_mode], cliprange_value)


def clipped(
    new_BS: Tensor, old_BS: Tensor, returns_BS: Tensor, batch: Batch, mean: Mean, bound: float
) -> Tensor:
    near_BS = old_BS + (new_BS - old_BS).clamp(-bound, bound)
    errors_BS = torch.max((new_BS - returns_BS).square(), (near_BS - returns_BS).square())
    return mean(errors_BS, batch) / 2


def own_critic(model: Any, batch: Batch, *, loss_agg_mode: str, cliprange_value: float) -> Any:
    """The critic's loss around values that it has itself computed before the step."""
    new_BS = values(model, batch)
    old_BS, mean = new_BS.detach(), MEANS[loss_agg_mode]
    loss = clipped(new_BS, old_BS, old_BS + batch["advantages"], batch, mean, cliprange_value)
    return loss, {"old_values": losses.mean(old_BS * batch["advantages"], batch)}


OTHERS = {
    "old_logps": computed(losses.logps, nudge=OLD),
    "reference_logps": computed(losses.logps, nudge=REFERENCE),
}
ADVANTAGES: dict[str, Column] = {"advantages": target(-2, 2)}
TEACHER = {"teacher_logits": computed(losses.logits)}
OF_CRITIC = {"old_values": target(-2, 2), "returns": target(-2, 2)}
POLICY = any_family()
VALUES = any_family(head="TokenClassification")

RECIPES = {
    "actor": Recipe(POLICY, actor, ADVANTAGES | OTHERS, ACTOR),
    "actor-distilled": Recipe(POLICY, distilled, ADVANTAGES | OTHERS | TEACHER, ACTOR),
    "actor-on-policy": Recipe(POLICY, on_policy, ADVANTAGES, ACTOR),
    "critic": Recipe(VALUES, critic, OF_CRITIC, CRITIC),
    "critic-own-values": Recipe(VALUES, own_critic, ADVANTAGES, CRITIC),
}
