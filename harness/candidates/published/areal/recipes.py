"""What plain training is for AReaL's actor and critic, written for one device.

Legend: B rows, S columns, V vocabulary. A number of a target stands in the target's own column.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.published.areal.advantages import VERSION, advantages, approximated
from harness.candidates.published.areal.formulas import LOW, gated, kept, surrogate
from harness.candidates.published.areal.settings import ACTOR, CRITIC, NORMED, REWARDS
from harness.recipes import Recipe, computed, losses, row, target
from harness.recipes.batch import Batch
from harness.recipes.columns import Column
from harness.recipes.families import any_family, family

# The weight of a teacher.
TEACHER = 0.1
# How far other weights are from new ones, so that a good part of the ratios is clipped.
OLD, PROXIMAL, OTHER = 2.0**-4, 2.0**-5, 2.0**-5

# What the settings are where an entry is about something else.
OF_K3: dict[str, Any] = {
    "eps_clip_higher": None,
    "c_clip": None,
    "importance_sampling_level": "token",
    "use_sapo_loss": False,
    "use_decoupled_loss": True,
    "rejection_sampling": "mask-k3",
    "temperature": 1.0,
    "teacher": None,
}
OF_LOGLINEAR: dict[str, Any] = {
    "use_decoupled_loss": True,
    "prox_logp_method": "loglinear",
    "reward_norm": None,
    "adv_norm": None,
}


def actor(
    model: Any,
    batch: Batch,
    *,
    eps_clip_higher: float | None,
    c_clip: float | None,
    importance_sampling_level: str,
    use_sapo_loss: bool,
    use_decoupled_loss: bool,
    rejection_sampling: str | None,
    temperature: float,
    teacher: float | None,
) -> Any:
    """A policy's loss, and that of distillation from a teacher.

    Ratios are to the policy that acted, or, if decoupled, to a proximal one. Then some targets can
    be rejected, or weighed, by how far these two are apart.
    """
    logits_BSV = losses.logits(model, batch) / temperature
    logps_BS, acted_BS = losses.picked(logits_BSV, batch["labels"]), batch["old_logps"]
    old_BS = batch["proximal_logps"] if use_decoupled_loss else acted_BS
    left = kept(old_BS - acted_BS, batch, rejection_sampling if use_decoupled_loss else None)
    gain_BS, advantages_BS = logps_BS - old_BS, batch["advantages"]
    if importance_sampling_level == "sequence":
        gain_BS, advantages_BS = left.of_rows(gain_BS), left.of_rows(advantages_BS)
    if use_sapo_loss:
        loss_BS, is_clipped_BS = gated(gain_BS.exp(), advantages_BS), torch.zeros_like(gain_BS)
    else:
        high = LOW if eps_clip_higher is None else eps_clip_higher
        loss_BS, is_clipped_BS = surrogate(gain_BS.exp(), advantages_BS, high, c_clip)
    log = {
        "actor": losses.mean(loss_BS * left.weight_BS, batch),
        "kl": losses.mean(logps_BS - old_BS, batch),
        "entropy": losses.mean(losses.entropy(logits_BSV), batch),
        "clipped": losses.mean(is_clipped_BS * left.is_kept_BS, batch),
    }
    if teacher is None:
        return log["actor"], log
    taught_BS = logps_BS - batch["teacher_logps"]
    if teacher == 0:
        # Alone, distillation is a policy gradient by ratios to the policy that acted.
        taught_BS = (logps_BS - acted_BS).exp() * taught_BS.detach()
    log["distillation"] = losses.mean(taught_BS, batch)
    return teacher * log["actor"] + TEACHER * log["distillation"], log


def rewarded(
    model: Any,
    batch: Batch,
    *,
    use_decoupled_loss: bool = False,
    recompute_logprob: bool = False,
    temperature: float = 1.0,
    prox_logp_method: str = "recompute",
    **settings: Any,
) -> Any:
    """A policy's loss on advantages that are made of rewards.

    With either setting the policy is its own old one in ratios; if the loss is not decoupled, also
    in the KL from a reference, which is a part of rewards.
    """
    logps_BS = losses.picked(losses.logits(model, batch) / temperature, batch["labels"])
    old_BS = acted_BS = batch["old_logps"]
    if prox_logp_method == "loglinear":
        old_BS = approximated(logps_BS, acted_BS, batch)
    elif use_decoupled_loss or recompute_logprob:
        old_BS = logps_BS.detach()
    if recompute_logprob and not use_decoupled_loss:
        acted_BS = old_BS
    advantages_BS, rewards_BS = advantages(acted_BS, batch, **settings)
    loss_BS, is_clipped_BS = surrogate((logps_BS - old_BS).exp(), advantages_BS, LOW, None)
    log = {
        "rewards": losses.mean(rewards_BS, batch),
        "clipped": losses.mean(is_clipped_BS, batch),
    }
    if settings["adv_norm"] is None:
        # Else their mean is nothing but rounding.
        log["advantages"] = losses.mean(advantages_BS, batch)
    return losses.mean(loss_BS, batch), log


def values(model: Any, batch: Batch) -> Tensor:
    """What the critic expects before each target -> BS."""
    return F.pad(losses.values(model, batch)[:, :-1], (1, 0))


def critic(model: Any, batch: Batch, *, eps_clip: float) -> Any:
    """PPO's clipped loss of values."""
    new_BS, old_BS, returns_BS = values(model, batch), batch["old_values"], batch["returns"]
    near_BS = old_BS + (new_BS - old_BS).clamp(-eps_clip, eps_clip)
    far_BS, near_BS = (new_BS - returns_BS).square(), (near_BS - returns_BS).square()
    log = {
        "values": losses.mean(new_BS, batch),
        "clipped": losses.mean(near_BS > far_BS, batch),
    }
    return losses.mean(torch.max(near_BS, far_BS), batch) / 2, log


def own_critic(model: Any, batch: Batch, *, eps_clip: float) -> Any:
    """The critic's loss around values that it has itself computed before the step."""
    own_BS = values(model, batch).detach()
    columns = {"old_values": own_BS, "returns": own_BS + batch["advantages"]}
    loss, log = critic(model, batch | columns, eps_clip=eps_clip)
    return loss, log | {"old_values": losses.mean(own_BS * batch["advantages"], batch)}


ADVANTAGES: dict[str, Column] = {"advantages": target(-2, 2)}
ACTED: dict[str, Column] = {"old_logps": computed(losses.logps, nudge=OLD)}
OTHERS = {
    "proximal_logps": computed(losses.logps, nudge=PROXIMAL),
    "teacher_logps": computed(losses.logps, nudge=OTHER),
}
OF_REWARDS = ACTED | {
    "rewards": row(-2, 2),
    "reference_logps": computed(losses.logps, nudge=OTHER),
}
OF_CRITIC = {"old_values": target(-2, 2), "returns": target(-2, 2)}
# How far these weights are apart where a KL rejects targets by bounds as they are documented.
FAR = 2.0**-2
FAR_OTHERS = {
    "old_logps": computed(losses.logps, nudge=FAR),
    "proximal_logps": computed(losses.logps, nudge=FAR),
}
POLICIES, QWEN3 = any_family(), family("qwen3")
VALUES = any_family(head="TokenClassification")

RECIPES = {
    "actor": Recipe(POLICIES, actor, ADVANTAGES | ACTED | OTHERS, ACTOR),
    "actor-rewards": Recipe(POLICIES, rewarded, OF_REWARDS, REWARDS),
    "actor-normed": Recipe(POLICIES, rewarded, OF_REWARDS, NORMED),
    "actor-loglinear": Recipe(
        QWEN3,
        partial(rewarded, **OF_LOGLINEAR),
        OF_REWARDS | {"policy_versions": target(0, VERSION)},
    ),
    "actor-k3": Recipe(QWEN3, partial(actor, **OF_K3), ADVANTAGES | FAR_OTHERS),
    "critic": Recipe(VALUES, critic, OF_CRITIC, CRITIC),
    "critic-own": Recipe(VALUES, own_critic, ADVANTAGES, CRITIC),
}
