"""How AReaL comes from rewards of rows to advantages of tokens.

Legend: B rows, S columns. A number of a target stands in the target's own column.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness.candidates.published.areal.formulas import targets
from harness.candidates.published.areal.settings import NORMS
from harness.recipes import losses
from harness.recipes.batch import Batch

# The weight of the KL from a reference among rewards, and its bound.
KL, MOST = 0.1, 10.0
# The version of the policy, where that which acted has one.
VERSION = 3
KLS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": losses.k1,
    "k2": losses.k2,
    "k3": losses.k3,
}
# What normalises where it does not say otherwise.
DEFAULTS: dict[str, Any] = {
    "mean_level": "batch",
    "mean_leave1out": False,
    "std_level": "batch",
    "std_unbiased": True,
    "eps": 1e-5,
}


def advantages(
    acted_BS: Tensor,
    batch: Batch,
    *,
    kl_estimator: str = "k1",
    discount: float = 1.0,
    gae_lambda: float = 1.0,
    reward_norm: str | None,
    adv_norm: str | None,
) -> tuple[Tensor, Tensor]:
    """Advantages by GAE without values, and the rewards that they are made of -> BS, BS.

    The reward of a row is that of its last token. Tokens that are no targets are passed over, with
    their rewards.
    """
    is_target_BS, scores_B = targets(batch), batch["rewards"]
    if reward_norm is not None:
        scores_B = normalised(scores_B, torch.ones_like(scores_B), batch, NORMS[reward_norm])
    kl_BS = KLS[kl_estimator](acted_BS - batch["reference_logps"]).clamp(-MOST, MOST)
    rewards_BS = (is_last(batch) * scores_B[:, None] - KL * kl_BS) * is_target_BS
    ahead_B, columns = torch.zeros_like(scores_B), []
    for reward_B, is_target_B in zip(
        reversed(rewards_BS.unbind(1)), reversed(is_target_BS.unbind(1)), strict=True
    ):
        ahead_B = torch.where(is_target_B, reward_B + discount * gae_lambda * ahead_B, ahead_B)
        columns.append(ahead_B)
    made_BS = torch.stack(columns[::-1], 1)
    if adv_norm is not None:
        made_BS = normalised(made_BS, is_target_BS.to(made_BS), batch, NORMS[adv_norm])
    return made_BS, rewards_BS


def approximated(logps_BS: Tensor, acted_BS: Tensor, batch: Batch) -> Tensor:
    """What the policy before this one says of each target, between that which acted and this one.

    It is the nearer to this one, the more versions lie between it and that which acted.
    """
    versions_BS = versions(batch["policy_versions"])
    share_BS = (VERSION - 1 - versions_BS) / (VERSION - versions_BS)
    return acted_BS + share_BS * (logps_BS.detach() - acted_BS)


def versions(drawn: Tensor) -> Tensor:
    """Make whole numbers, which are below the version of the policy, of those of a column."""
    return drawn.floor().clamp(0, VERSION - 1)


def is_last(batch: Batch) -> Tensor:
    """Whether a token is the last of its row -> BS."""
    real_BS = batch["attention_mask"].bool()
    return real_BS & (real_BS.flip(1).cumsum(1).flip(1) == 1)


def normalised(x: Tensor, counted: Tensor, batch: Batch, given: dict[str, Any]) -> Tensor:
    """Subtract a mean and divide by a deviation, each of the whole batch or of a pair of rows.

    `x` has a number for each row, or for each token; `counted` is one where it counts.
    """
    config, mean, deviation = DEFAULTS | given, torch.zeros_like(x), torch.ones_like(x)
    for rows in sets(config["mean_level"], batch):
        mean[rows] = mean_of(x[rows], counted[rows], leaves_out=config["mean_leave1out"])
    centred = (x - mean) * counted
    for rows in sets(config["std_level"], batch):
        count = counted[rows].sum() - int(config["std_unbiased"])
        if count > 0:
            deviation[rows] = (centred[rows].square().sum() / count).sqrt()
    return centred / (deviation + (config["eps"] if config["std_level"] else 0))


def mean_of(x: Tensor, counted: Tensor, *, leaves_out: bool) -> Tensor:
    """The mean of all, or for each that of all others; zero if there are none."""
    own = x * counted if leaves_out else 0
    count = counted.sum() - int(leaves_out)
    return (((x * counted).sum() - own) / count if count > 0 else torch.zeros(())).expand_as(x)


def sets(level: str | None, batch: Batch) -> list[list[int]]:
    """The places of the rows that have a mean or a deviation in common."""
    places = torch.arange(len(batch["row"]))
    if level == "batch":
        return [places.tolist()]
    return torch.stack(losses.in_pairs(places, batch), 1).tolist() if level else []
