"""What the losses of OpenRLHF's trainers are made of.

Legend: B rows, S columns. A number of a target stands in the target's own column.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness.candidates.published.openrlhf.settings import CORRECTIONS
from harness.recipes import losses
from harness.recipes.batch import IGNORED, Batch

# How far below one ratios may be.
LOW = 0.2
# The caps of a log ratio, of a token's KL, and of a ratio that weights its gradient.
MOST_GAIN, MOST_KL, MOST_WEIGHT = 20, 10, 10
# What is least and most likely, where a divergence is taken of it.
LEAST = 1e-6
# How many experts a token meets.
CHOSEN = 2


def targets(batch: Batch) -> Tensor:
    return batch["labels"] != IGNORED


def by_token(x_BS: Tensor, batch: Batch) -> Tensor:
    return losses.mean(x_BS, batch)


def by_row(x_BS: Tensor, batch: Batch) -> Tensor:
    """The average over the targets of each row, then over the rows that have any."""
    rows = targets(batch).any(1).sum().clamp(min=1)
    return losses.mean_of_row(x_BS, batch).sum() / rows


MEANS: dict[str, Callable[[Tensor, Batch], Tensor]] = {
    "token-mean": by_token,
    "seq-mean-token-mean": by_row,
}


def of_tokens(gain_BS: Tensor, _batch: Batch) -> Tensor:
    return gain_BS.clamp(-MOST_GAIN, MOST_GAIN).exp()


def of_rows(gain_BS: Tensor, batch: Batch) -> Tensor:
    """GSPO: the ratio of a row is the geometric mean of those of its targets."""
    return losses.mean_of_row(gain_BS, batch).exp()[:, None].expand_as(gain_BS)


RATIOS: dict[str, Callable[[Tensor, Batch], Tensor]] = {"ppo": of_tokens, "gspo": of_rows}


def surrogate(
    ratio_BS: Tensor, advantages_BS: Tensor, high: float, dual: float | None
) -> tuple[Tensor, Tensor]:
    """PPO's loss of each target, and where its ratio is clipped.

    With a dual clip a bad action loses at most so many times its advantage.
    """
    free_BS = -ratio_BS * advantages_BS
    near_BS = -ratio_BS.clamp(1 - LOW, 1 + high) * advantages_BS
    loss_BS = torch.max(free_BS, near_BS)
    if dual is not None:
        loss_BS = loss_BS.min(dual * advantages_BS.abs())
    return loss_BS, near_BS > free_BS


def binary_kl(rollout_BS: Tensor, old_BS: Tensor) -> Tensor:
    """The KL of whether the target is chosen, from the policy that acted to the old one."""
    p_BS, q_BS = likely(rollout_BS), likely(old_BS)
    return p_BS * (p_BS / q_BS).log() + (1 - p_BS) * ((1 - p_BS) / (1 - q_BS)).log()


def variation(rollout_BS: Tensor, old_BS: Tensor) -> Tensor:
    """By how much the two policies differ in how likely the target is."""
    return (likely(rollout_BS) - likely(old_BS)).abs()


def likely(logps_BS: Tensor) -> Tensor:
    return logps_BS.exp().clamp(LEAST, 1 - LEAST)


DIVERGENCES = {"binary_kl": binary_kl, "tv": variation}


def corrected(batch: Batch, correction: str) -> tuple[Tensor, Tensor]:
    """What each target weighs, since another policy has acted, and where that is bounded."""
    how = {"mode": "mask", "gating": "ratio", **CORRECTIONS[correction]}
    old_BS, rollout_BS = batch["old_logps"], batch["rollout_logps"]
    weight_BS = (old_BS - rollout_BS).exp()
    is_ratio, is_row = how["gating"] == "ratio", how["level"] == "seq"
    gate_BS = old_BS - rollout_BS if is_ratio else DIVERGENCES[how["gating"]](rollout_BS, old_BS)
    if is_row:
        gate_BS = losses.mean_of_row(gate_BS, batch)[:, None].expand_as(gate_BS)
    gate_BS = gate_BS.exp() if is_ratio else gate_BS
    low, high = how["threshold"]
    is_far_BS = (gate_BS < low) | (gate_BS > high)
    if how["mode"] == "clip":
        return weight_BS.clamp(low, high), is_far_BS
    return weight_BS.masked_fill(is_far_BS, 0), is_far_BS


def k3(gain_BS: Tensor) -> Tensor:
    return losses.k3(gain_BS.clamp(min=-MOST_KL))


KLS: dict[str, Callable[[Tensor], Tensor]] = {"k1": losses.k1, "k2": losses.k2, "k3": k3}


def divergence(logps_BS: Tensor, batch: Batch, estimator: str, *, is_unbiased: bool) -> Tensor:
    """The KL of each target from a reference.

    Unbiased, it has the gradient of the reverse KL: that of k2 by the ratio to the old policy.
    """
    gain_BS = logps_BS - batch["reference_logps"]
    kl_BS = KLS[estimator](gain_BS).clamp(-MOST_KL, MOST_KL)
    if not is_unbiased:
        return kl_BS
    weight_BS = (logps_BS - batch["old_logps"]).exp().clamp(max=MOST_WEIGHT).detach()
    reverse_BS = weight_BS * losses.k2(gain_BS)
    return kl_BS.detach() + reverse_BS - reverse_BS.detach()


def balance(out: Any, batch: Batch) -> Tensor:
    """The balance of experts in each micro-batch, averaged over micro-batches.

    It is that of Switch Transformers, over the tokens of a micro-batch in all layers.
    """
    place_B2 = torch.stack([batch["replica"], batch["micro_batch"]], 1)
    part_B = place_B2.unique(dim=0, return_inverse=True)[1]
    is_real_BS = batch["attention_mask"].bool()
    layers = [logits_TE.unflatten(0, is_real_BS.shape) for logits_TE in out.router_logits]
    of_parts = []
    for part in range(int(part_B.max()) + 1):
        is_part_BS = is_real_BS & (part_B == part)[:, None]
        router_TE = torch.cat([logits_BSE[is_part_BS] for logits_BSE in layers])
        of_parts.append(losses.load_balance(router_TE, CHOSEN))
    return torch.stack(of_parts).mean()
