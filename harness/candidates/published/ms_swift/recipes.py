"""What plain training is for `swift rlhf`, written for one device.

Legend: B rows, S columns, V vocabulary. A number of a target stands in the target's own column.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.published.ms_swift.formulas import (
    EPSILON,
    advantages,
    is_kept,
    loss_of_targets,
    mean,
    ratios,
)
from harness.candidates.published.ms_swift.settings import FIPO, GRPO, RLOO
from harness.candidates.published.wiring.actions import k3
from harness.candidates.published.wiring.scaled import scaled
from harness.recipes import Recipe, losses, row
from harness.recipes.batch import Batch
from harness.recipes.families import any_family, family

# DPO's; the weight of GRPO's KL; and that of sampling.
BETA, KL, TEMPERATURE = 0.1, 0.1, 0.8
# The weights of a reference and of an old policy, as shares of those of the policy.
REFERENCE, OLD = 1 - 2.0**-4, 1 - 2.0**-5


def dpo(model: Any, batch: Batch) -> Any:
    """DPO, by how much likelier each row is than it is to the reference."""
    logps_B = losses.logps(model, batch).sum(1)
    with torch.no_grad():
        reference_B = losses.logps(scaled(model, REFERENCE), batch).sum(1)
    chosen, rejected = losses.in_pairs(BETA * (logps_B - reference_B), batch)
    likely, unlikely = losses.in_pairs(logps_B, batch)
    log = {
        "rewards_chosen": chosen.mean(),
        "rewards_rejected": rejected.mean(),
        "logps_chosen": likely.mean(),
        "logps_rejected": unlikely.mean(),
    }
    return -F.logsigmoid(chosen - rejected).mean(), log


def rows_mean(x_BS: Tensor, batch: Batch) -> Tensor:
    """Average over the targets of each row, then over rows."""
    return losses.mean_of_row(x_BS, batch).mean()


def grpo(
    model: Any,
    batch: Batch,
    *,
    loss_type: str = "grpo",
    importance_sampling_level: str = "token",
    epsilon_high: float | None = None,
    delta: float | None = None,
    scale_rewards: str = "none",
    advantage_estimator: str = "grpo",
    kl_in_reward: bool = False,
    off_policy_sequence_mask_delta: float | None = None,
) -> Any:
    """GRPO with a penalty for the KL from a reference, in the loss or in rewards."""
    logits_BSV = losses.logits(model, batch) / TEMPERATURE
    logps_BS = losses.picked(logits_BSV, batch["labels"])
    with torch.no_grad():
        old_BS, reference_BS = (
            losses.picked(
                losses.logits(scaled(model, share), batch) / TEMPERATURE, batch["labels"]
            )
            for share in (OLD, REFERENCE)
        )
    rewards_B = batch["rewards"]
    if kl_in_reward:
        rewards_B = rewards_B - KL * (old_BS - reference_BS).sum(1)
    better_B = advantages(rewards_B, batch, advantage_estimator, scale_rewards)
    ratio_BS = ratios(logps_BS, old_BS, batch, importance_sampling_level)
    high = EPSILON if epsilon_high is None else epsilon_high
    loss_BS = loss_of_targets(
        loss_type, ratio_BS, better_B, logps_BS, old_BS, high=high, delta=delta
    )
    if not kl_in_reward:
        loss_BS = loss_BS + KL * k3(logps_BS - reference_BS)
    kept_BS = is_kept(logps_BS - old_BS, better_B, batch, off_policy_sequence_mask_delta)
    log = {"entropy": rows_mean(losses.entropy(logits_BSV), batch)}
    return mean(loss_type, loss_BS, kept_BS, batch), log


POLICY, POLICIES = family("llama"), any_family()
REWARDS = {"rewards": row(-2, 2)}
RECIPES = {
    "dpo": Recipe(POLICY, dpo),
    "packed-dpo": Recipe(POLICY, dpo),
    "grpo": Recipe(POLICIES, grpo, REWARDS, GRPO),
    "packed-grpo": Recipe(POLICIES, grpo, REWARDS, GRPO),
    "packed-rloo": Recipe(POLICIES, partial(grpo, kl_in_reward=True), REWARDS, RLOO),
    "packed-fipo": Recipe(POLICIES, partial(grpo, loss_type="fipo"), REWARDS, FIPO),
}
