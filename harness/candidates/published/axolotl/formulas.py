"""What the losses of axolotl's trainers are made of, as the documents of TRL have it.

Legend: B rows, S columns. A number of a target stands in the target's own column.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from harness.recipes import losses
from harness.recipes.batch import IGNORED, Batch

# How far an old policy is, so that a good part of the ratios is clipped, and the weights of a
# reference, as a share of the policy's.
OLD, REFERENCE = 2.0**-4, 1 - 2.0**-4
# How far from one ratios may be; the length by which Dr. GRPO divides; how many answers there are
# to a prompt.
EPSILON, LENGTH, ANSWERS = 0.2, 8, 2
# Beside a deviation by which rewards are divided.
SMALL = 1e-4

# loss(log-probabilities, old ones, advantages, batch) -> of each target.
Loss = Callable[[Tensor, Tensor, Tensor, Batch], Tensor]
Mean = Callable[[Tensor, Batch], Tensor]


def of_replicas(x_BS: Tensor, batch: Batch) -> Tensor:
    """Average over the targets of each replica, then over replicas."""
    is_target_BS = (batch["labels"] != IGNORED).to(x_BS.dtype)
    means = [
        (x_BS * is_target_BS)[rows].sum() / is_target_BS[rows].sum().clamp(min=1)
        for rows in (batch["replica"] == replica for replica in batch["replica"].unique())
    ]
    return torch.stack(means).mean()


def advantages(batch: Batch, scale_rewards: str) -> Tensor:
    """Rewards less their mean over the answers to a prompt, over a deviation -> B."""
    chosen, rejected = losses.in_pairs(torch.arange(len(batch["row"])), batch)
    places_PA = torch.stack([chosen, rejected], 1)
    rewards_PA = batch["rewards"][places_PA]
    gains_PA = rewards_PA - rewards_PA.mean(1, keepdim=True)
    if scale_rewards == "group":
        gains_PA = gains_PA / (rewards_PA.std(1, keepdim=True) + SMALL)
    found_B = torch.zeros_like(batch["rewards"])
    found_B[places_PA] = gains_PA
    return found_B


def clipped(logps_BS: Tensor, old_BS: Tensor, gains_B1: Tensor, batch: Batch) -> Tensor:
    """The surrogate of PPO."""
    del batch
    return losses.surrogate(logps_BS - old_BS, gains_B1, EPSILON)[0]


def weighted(logps_BS: Tensor, old_BS: Tensor, gains_B1: Tensor, batch: Batch) -> Tensor:
    """CISPO: a policy gradient that is weighted by ratios with a bound."""
    del batch
    return -(logps_BS - old_BS).exp().clamp(max=1 + EPSILON).detach() * gains_B1 * logps_BS


def by_row(x_BS: Tensor, batch: Batch) -> Tensor:
    """Average over the targets of each row, then over rows."""
    return losses.mean_of_row(x_BS, batch).mean()


def by_length(x_BS: Tensor, batch: Batch) -> Tensor:
    """Add up over targets, and divide by the length that each row may have."""
    return (x_BS * (batch["labels"] != IGNORED)).sum() / (len(x_BS) * LENGTH)


def by_sum(x_BS: Tensor, batch: Batch) -> Tensor:
    """Add up over the targets of each row, and average over rows."""
    return (x_BS * (batch["labels"] != IGNORED)).sum(1).mean()


POLICIES: dict[str, Loss] = {
    **dict.fromkeys(("dapo", "grpo", "bnpo", "dr_grpo", "luspo"), clipped),
    "cispo": weighted,
}
MEANS: dict[str, Mean] = {
    "dapo": losses.mean,
    "grpo": by_row,
    "bnpo": of_replicas,
    "dr_grpo": by_length,
    "cispo": losses.mean,
    "luspo": by_sum,
}
