"""What the losses of AReaL's actor and critic are made of.

Legend: B rows, S columns. A number of a target stands in the target's own column.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.candidates.published.areal.settings import REJECTIONS
from harness.recipes import losses
from harness.recipes.batch import IGNORED, Batch

# Clipping from below; steepness of SAPO for good and bad actions.
LOW, GOOD, BAD = 0.2, 1.0, 1.05
# What `rejection_sampling` is where it does not say otherwise.
DEFAULTS: dict[str, Any] = {
    "level": "token",
    "action": "mask",
    "metric": "ratio",
    "agg": "mean",
    "lower": None,
}


@dataclass(frozen=True)
class Kept:
    """What is left of the targets after some are rejected, and what each then counts."""

    is_kept_BS: Tensor
    weight_BS: Tensor

    def of_rows(self, x_BS: Tensor) -> Tensor:
        """The average over what is left of each row, for each of its targets -> BS."""
        sums_B1 = (x_BS * self.is_kept_BS).sum(1, keepdim=True)
        counts_B1 = self.is_kept_BS.sum(1, keepdim=True).clamp(min=1)
        return (sums_B1 / counts_B1).expand_as(x_BS)


def targets(batch: Batch) -> Tensor:
    return batch["labels"] != IGNORED


def kept(gain_BS: Tensor, batch: Batch, rejection: str | None) -> Kept:
    """Reject, or weigh, targets by how much likelier the proximal policy finds them.

    `gain_BS` is by how much its log-probability is above that of the policy that acted.
    """
    is_target_BS = targets(batch)
    if rejection is None:
        return Kept(is_target_BS, is_target_BS.to(gain_BS.dtype))
    config = DEFAULTS | REJECTIONS[rejection]
    by_row, is_ratio = config["level"] == "sequence", config["metric"] == "ratio"
    log_weight_BS = gain_BS
    metric_BS = {"ratio": gain_BS, "kl_k2": losses.k2(gain_BS), "kl_k3": losses.k3(-gain_BS)}[
        config["metric"]
    ]
    if by_row:
        metric_BS = of_rows(metric_BS, batch, config["agg"])
        log_weight_BS = of_rows(gain_BS, batch, "mean") if is_ratio else gain_BS
    metric_BS = metric_BS.exp() if is_ratio else metric_BS
    least, most = config["lower"] or 0.0, config["upper"]
    is_near_BS, weight_BS = (metric_BS <= most) & (metric_BS >= least), log_weight_BS.exp()
    if config["action"] == "clamp":
        return Kept(is_target_BS, weight_BS.clamp(least, most) * is_target_BS)
    return Kept(is_target_BS & is_near_BS, weight_BS * (is_target_BS & is_near_BS))


def of_rows(x_BS: Tensor, batch: Batch, how: str) -> Tensor:
    """The mean, the sum or the largest of each row's targets, for each of them -> BS."""
    is_target_BS = targets(batch)
    if how == "max":
        least = float("-inf")
        of_row_B1 = x_BS.masked_fill(~is_target_BS, least).amax(1, keepdim=True)
        of_row_B1 = of_row_B1.masked_fill(~is_target_BS.any(1, keepdim=True), 0)
    else:
        of_row_B1 = (x_BS * is_target_BS).sum(1, keepdim=True)
        counts_B1 = is_target_BS.sum(1, keepdim=True).clamp(min=1)
        of_row_B1 = of_row_B1 / counts_B1 if how == "mean" else of_row_B1
    return of_row_B1.expand_as(x_BS)


def surrogate(
    ratio_BS: Tensor, advantages_BS: Tensor, high: float, dual: float | None
) -> tuple[Tensor, Tensor]:
    """PPO's loss of each target, and where its ratio is clipped."""
    free_BS = -ratio_BS * advantages_BS
    near_BS = -ratio_BS.clamp(1 - LOW, 1 + high) * advantages_BS
    loss_BS = torch.max(free_BS, near_BS)
    if dual is not None:
        loss_BS = loss_BS.min(dual * advantages_BS.abs())
    return loss_BS, near_BS > free_BS


def gated(ratio_BS: Tensor, advantages_BS: Tensor) -> Tensor:
    """SAPO's loss of each target: a sigmoid of its ratio in place of a clipped one."""
    steepness_BS = torch.where(advantages_BS > 0, GOOD, BAD)
    return -(steepness_BS * (ratio_BS - 1)).sigmoid() * 4 / steepness_BS * advantages_BS
