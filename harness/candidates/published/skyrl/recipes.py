"""What plain training is for SkyRL's policy and critic, written for one device.

Legend: B rows, S columns, V vocabulary. A number of a target stands in the target's own column.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.published.skyrl.formulas import (
    KLS,
    LOSSES,
    LOW,
    MEANS,
    by_micro_batch,
    by_row,
)
from harness.candidates.published.skyrl.settings import CRITIC, POLICY, TEMPERED
from harness.candidates.published.wiring.actions import Actions
from harness.recipes import Recipe, computed, losses, target
from harness.recipes.batch import Batch
from harness.recipes.columns import Column
from harness.recipes.families import any_family, family

# The weights of the KL from a reference, and of the bonus for entropy.
KL, ENTROPY = 0.1, 0.01
# How far old weights are from new ones, so that a good part of the ratios is clipped.
OLD, REFERENCE = 2.0**-4, 2.0**-5
# What the settings are where an entry is about something else.
FIXED: dict[str, Any] = {
    "policy_loss_type": "dual_clip",
    "loss_reduction": "token_mean",
    "eps_clip_high": 0.28,
    "clip_ratio_c": 3.0,
    "use_kl_loss": True,
    "kl_estimator_type": "k3",
}
OF_TOKENS = FIXED | {"use_entropy_loss": False}
OF_TEMPERED = FIXED | {"use_entropy_loss": True, "temperature": 0.8}


def policy(
    model: Any,
    batch: Batch,
    *,
    policy_loss_type: str,
    loss_reduction: str,
    eps_clip_high: float,
    clip_ratio_c: float,
    use_kl_loss: bool,
    kl_estimator_type: str,
    use_entropy_loss: bool,
    temperature: float = 1.0,
) -> Any:
    """A policy's loss, with a penalty for the KL from a reference and a bonus for entropy."""
    logits_BSV = losses.logits(model, batch) / temperature
    logps_BS = losses.picked(logits_BSV, batch["labels"])
    old_BS = batch.get("old_logps", logps_BS.detach())
    reference_BS = batch.get("reference_logps", logps_BS.detach())
    actions = Actions(
        logps_BS, old_BS, batch["advantages"], batch, LOW, eps_clip_high, clip_ratio_c
    )
    loss_BS, is_clipped_BS = LOSSES[policy_loss_type](actions)
    log = {"policy": MEANS[loss_reduction](loss_BS, batch)}
    if is_clipped_BS is not None:
        log["clipped"] = by_micro_batch(is_clipped_BS, batch)
    log["entropy"] = by_micro_batch(losses.entropy(logits_BSV), batch)
    loss = log["policy"]
    if use_entropy_loss:
        loss = loss - ENTROPY * log["entropy"]
    if use_kl_loss:
        log["kl"] = by_row(KLS[kl_estimator_type](logps_BS - reference_BS), batch)
        loss = loss + KL * log["kl"]
    return loss, log


def own_policy(model: Any, batch: Batch, *, temperature: float = 1.0, **settings: Any) -> Any:
    """The policy's loss where the policy is its own old one and its own reference."""
    loss, log = policy(model, batch, temperature=temperature, **settings)
    own_BS = losses.picked(losses.logits(model, batch).detach() / temperature, batch["labels"])
    return loss, log | {"old_logps": losses.mean(own_BS * batch["advantages"], batch)}


def values(model: Any, batch: Batch) -> Tensor:
    """What the critic expects before each target -> BS."""
    given = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
    hidden_BSD = model.model(**given, use_cache=False).last_hidden_state
    return F.pad(model.score(hidden_BSD)[:, :-1, 0], (1, 0))


def value(model: Any, batch: Batch, *, value_clip: float) -> Any:
    """PPO's clipped loss of values."""
    new_BS, old_BS, returns_BS = values(model, batch), batch["old_values"], batch["returns"]
    near_BS = old_BS + (new_BS - old_BS).clamp(-value_clip, value_clip)
    far_BS, near_BS = (new_BS - returns_BS).square(), (near_BS - returns_BS).square()
    log = {
        "values": by_micro_batch(new_BS, batch),
        "clipped": by_micro_batch(near_BS > far_BS, batch),
    }
    return by_row(torch.max(near_BS, far_BS), batch) / 2, log


def own_value(model: Any, batch: Batch, *, value_clip: float) -> Any:
    """The critic's loss around values that it has itself computed before the step."""
    own_BS = values(model, batch).detach()
    columns = {"old_values": own_BS, "returns": own_BS + batch["advantages"]}
    loss, log = value(model, batch | columns, value_clip=value_clip)
    return loss, log | {"old_values": losses.mean(own_BS * batch["advantages"], batch)}


# What an old policy and a reference say of each target.
OTHERS = {
    "old_logps": computed(losses.logps, nudge=OLD),
    "reference_logps": computed(losses.logps, nudge=REFERENCE),
}
ADVANTAGES: dict[str, Column] = {"advantages": target(-2, 2)}
OF_CRITIC = {"old_values": target(-2, 2), "returns": target(-2, 2)}
LLAMA, POLICIES = family("llama"), any_family()
# Its head has no bias.
VALUES = any_family(head="SequenceClassification")
TOKENS = Recipe(LLAMA, partial(policy, **OF_TOKENS), ADVANTAGES | OTHERS)

RECIPES = {
    "policy": Recipe(POLICIES, policy, ADVANTAGES | OTHERS, TEMPERED),
    "policy-tokens": TOKENS,
    "policy-tokens-log": TOKENS,
    "policy-own": Recipe(POLICIES, own_policy, ADVANTAGES, POLICY),
    "policy-tempered": Recipe(LLAMA, partial(own_policy, **OF_TEMPERED), ADVANTAGES),
    "value": Recipe(VALUES, value, OF_CRITIC, CRITIC),
    "value-own": Recipe(VALUES, own_value, ADVANTAGES, CRITIC),
}
