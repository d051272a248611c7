"""What the loss of ms-swift's GRPO is made of.

Legend: B rows, S columns. A number of a target stands in the target's own column.
"""

import torch
from torch import Tensor

from harness.recipes import losses
from harness.recipes.batch import IGNORED, Batch

# The bound of a ratio; steepness of SAPO for good and bad actions; the longest answer.
EPSILON, GOOD, BAD, LONGEST = 0.2, 1.0, 1.05, 8
# It keeps a deviation of zero from being divided by.
LEAST = 1e-4
# FIPO: what is left of a token's share in the one before it; the largest weight; for a bad action
# whose ratio is above the last of these, the smallest weight.
LEFT, MOST, LEAST_BAD, HIGH = 2 ** (-1 / 32.0), 1.2, 0.8, 4.0


def advantages(rewards_B: Tensor, batch: Batch, estimator: str, scale: str) -> Tensor:
    """How much better each of two answers is than both are on average -> B."""
    first, second = losses.in_pairs(rewards_B, batch)
    places_B = torch.cat(losses.in_pairs(torch.arange(len(rewards_B)), batch)).argsort()
    half, pair = (first - second) / 2, (first - second).abs() / 2**0.5
    better_B, pair_B = torch.cat([half, -half])[places_B], torch.cat([pair, pair])[places_B]
    if scale == "none":
        scale_B = torch.ones_like(pair_B)
    elif scale == "group":
        scale_B = pair_B + LEAST
    else:
        all_B = better_B if estimator == "reinforce_plus_plus" else rewards_B
        scale_B = all_B.std() + LEAST
    # Without itself an answer is compared with the other one, which is twice as far.
    return better_B * (2 if estimator == "rloo" else 1) / scale_B


def ratios(logps_BS: Tensor, old_BS: Tensor, batch: Batch, level: str) -> Tensor:
    """How much likelier each target became, or all of its row on average."""
    gain_BS = logps_BS - old_BS
    if level == "token":
        return gain_BS.exp()
    of_row_BS = losses.mean_of_row(gain_BS, batch)[:, None].expand_as(gain_BS)
    if level == "sequence":
        return of_row_BS.exp()
    return (logps_BS - logps_BS.detach() + of_row_BS.detach()).exp()


def loss_of_targets(
    kind: str,
    ratio_BS: Tensor,
    better_B: Tensor,
    logps_BS: Tensor,
    old_BS: Tensor,
    *,
    high: float,
    delta: float | None,
) -> Tensor:
    """What each target loses, before KL -> BS."""
    better_BS = better_B[:, None].expand_as(logps_BS)
    if kind == "cispo":
        return -ratio_BS.clamp(max=high).detach() * better_BS * logps_BS
    if kind == "sapo":
        steep_BS = torch.where(better_BS > 0, GOOD, BAD)
        return -(steep_BS * (ratio_BS - 1)).sigmoid() * 4 / steep_BS * better_BS
    free_BS = ratio_BS if delta is None else ratio_BS.clamp(max=delta)
    near_BS = ratio_BS.clamp(1 - EPSILON, 1 + high)
    loss_BS = -torch.min(free_BS * better_BS, near_BS * better_BS)
    if kind != "fipo":
        return loss_BS
    return loss_BS * influence(logps_BS - old_BS, ratio_BS, better_BS, delta)


def influence(gain_BS: Tensor, ratio_BS: Tensor, better_BS: Tensor, delta: float | None) -> Tensor:
    """FIPO: what a target counts, by how much likelier those after it became, the nearer the more.

    The gain is zero off the targets.
    """
    counted_BS = gain_BS if delta is None else gain_BS.where(ratio_BS <= delta, 0)
    column_S = torch.arange(gain_BS.shape[1])
    ahead_SS = column_S - column_S[:, None]
    share_SS = (LEFT**ahead_SS).where(ahead_SS >= 0, 0).to(gain_BS)
    weight_BS = (counted_BS @ share_SS.T).exp().clamp(1, MOST).detach()
    is_bad_BS = (better_BS < 0) & (ratio_BS > HIGH)
    return torch.where(is_bad_BS, weight_BS.clamp(LEAST_BAD, 1), weight_BS)


def is_kept(gain_BS: Tensor, better_B: Tensor, batch: Batch, delta: float | None) -> Tensor:
    """Whether a target counts: rows do not that are bad, and that the policy has left."""
    is_target_BS = batch["labels"] != IGNORED
    if delta is None:
        return is_target_BS
    is_far_B = -losses.mean_of_row(gain_BS, batch) > delta
    return is_target_BS & ~(is_far_B & (better_B < 0))[:, None]


def mean(kind: str, loss_BS: Tensor, is_kept_BS: Tensor, batch: Batch) -> Tensor:
    """Average what targets lose as a loss of this kind does -> one number."""
    kept_BS = loss_BS * is_kept_BS
    if kind in ("grpo", "sapo"):
        return (kept_BS.sum(1) / is_kept_BS.sum(1).clamp(min=1)).mean()
    if kind == "dr_grpo":
        return kept_BS.sum(1).mean() / LONGEST
    return losses.mean(kept_BS, batch)
