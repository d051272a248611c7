"""What plain training is for `swift rlhf`, written for one device.

Legend: B rows, S columns, V vocabulary. A number of a target stands in the target's own column.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.published.wiring.actions import k3
from harness.candidates.published.wiring.scaled import scaled
from harness.recipes import Recipe, losses, row
from harness.recipes.batch import Batch
from harness.recipes.families import family

# DPO's, then GRPO's for the KL penalty and the bounds of the ratio; and of sampling.
BETA, KL, EPSILON, TEMPERATURE = 0.1, 0.1, 0.2, 0.8
# The weights of a reference and of an old policy, as shares of those of the policy.
REFERENCE, OLD = 1 - 2.0**-4, 1 - 2.0**-5

# mean(a number of each target, batch) -> one number.
Mean = Callable[[Tensor, Batch], Tensor]


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


def advantages(batch: Batch) -> Tensor:
    """How much better each of two answers is than both are on average -> B."""
    first, second = losses.in_pairs(batch["rewards"], batch)
    places_B = torch.cat(losses.in_pairs(torch.arange(len(batch["row"])), batch))
    half = (first - second) / 2
    return torch.cat([half, -half])[places_B.argsort()]


def grpo(model: Any, batch: Batch, *, mean: Mean = rows_mean, of_rows: bool = False) -> Any:
    """GRPO with a penalty for the KL from a reference; GSPO has one ratio for each row."""
    logits_BSV = losses.logits(model, batch) / TEMPERATURE
    logps_BS = losses.picked(logits_BSV, batch["labels"])
    with torch.no_grad():
        old_BS, reference_BS = (
            losses.picked(
                losses.logits(scaled(model, share), batch) / TEMPERATURE, batch["labels"]
            )
            for share in (OLD, REFERENCE)
        )
    gain_BS = logps_BS - old_BS
    if of_rows:
        gain_BS = losses.mean_of_row(gain_BS, batch)[:, None].expand_as(gain_BS)
    loss_BS, _ = losses.surrogate(gain_BS, advantages(batch)[:, None], EPSILON)
    kl_BS = k3(logps_BS - reference_BS)
    log = {"entropy": rows_mean(losses.entropy(logits_BSV), batch)}
    return mean(loss_BS + KL * kl_BS, batch), log


POLICY = family("llama")
REWARDS = {"rewards": row(-2, 2)}
RECIPES = {
    "dpo": Recipe(POLICY, dpo),
    "packed-dpo": Recipe(POLICY, dpo),
    "grpo": Recipe(POLICY, grpo, REWARDS),
    "packed-grpo": Recipe(POLICY, grpo, REWARDS),
    "packed-dapo": Recipe(POLICY, partial(grpo, mean=losses.mean), REWARDS),
    "packed-gspo": Recipe(POLICY, partial(grpo, of_rows=True), REWARDS),
}
