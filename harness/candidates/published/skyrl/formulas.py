"""What the loss of SkyRL's policy is made of: losses of targets, estimates of a KL, and averages.

Legend: B rows, S columns, P micro-batches of all replicas. A number of a target stands in the
target's own column.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.recipes import losses
from harness.recipes.batch import IGNORED, Batch

# Clipping from below; sigmoids of SAPO for good and bad actions; CISPO's ratios, how far from one.
LOW, GOOD, BAD, BELOW, ABOVE = 0.2, 1.0, 1.05, 0.5, 0.5
# What seq_mean_token_sum_norm divides the sum of a row by.
SCALE = 8
# mean(a number of each target, batch) -> one number.
Mean = Callable[[Tensor, Batch], Tensor]


def by_row(x_BS: Tensor, batch: Batch) -> Tensor:
    """The average over the targets of each row, then over rows."""
    return losses.mean_of_row(x_BS, batch).mean()


def by_micro_batch(x_BS: Tensor, batch: Batch) -> Tensor:
    """The average over the targets of each micro-batch, then over those of all replicas.

    SkyRL averages so on purpose what is no loss of a policy, and what it logs.
    """
    is_target_BS = batch["labels"] != IGNORED
    place_B2 = torch.stack([batch["replica"], batch["micro_batch"]], 1)
    part_B = place_B2.unique(dim=0, return_inverse=True)[1]
    is_in_PB = F.one_hot(part_B).T.float()
    sums_P = is_in_PB @ (x_BS * is_target_BS).sum(1).float()
    return (sums_P / (is_in_PB @ is_target_BS.sum(1).float()).clamp(min=1)).mean()


def sum_by_row(x_BS: Tensor, batch: Batch) -> Tensor:
    """The sum over the targets of each row by a constant, then the average over rows."""
    return (x_BS * (batch["labels"] != IGNORED)).sum(1).mean() / SCALE


MEANS: dict[str, Mean] = {
    "token_mean": losses.mean,
    "sequence_mean": by_row,
    "seq_mean_token_sum_norm": sum_by_row,
    "token_mean_legacy": by_micro_batch,
}


@dataclass(frozen=True)
class Actions:
    """How likely each target is, how likely it was, and what it gains."""

    logps_BS: Tensor
    old_BS: Tensor
    advantages_BS: Tensor
    batch: Batch
    # What ratios are clipped to, and those of bad actions.
    high: float
    dual: float

    def ratios(self) -> Tensor:
        # The bound is the release's own.
        return (self.logps_BS - self.old_BS).clamp(-20, 20).exp()

    def surrogate(self, ratio_BS: Tensor) -> tuple[Tensor, Tensor]:
        """The worse of what a ratio and its clipped value lose, and where it is the latter."""
        free_BS = -ratio_BS * self.advantages_BS
        near_BS = -ratio_BS.clamp(1 - LOW, 1 + self.high) * self.advantages_BS
        return torch.max(free_BS, near_BS), near_BS > free_BS


# What each target loses, and which are clipped; None where nothing is logged of that.
Loss = Callable[[Actions], tuple[Tensor, Tensor | None]]


def regular(of: Actions) -> tuple[Tensor, Tensor]:
    """PPO's surrogate."""
    return of.surrogate(of.ratios())


def dual_clip(of: Actions) -> tuple[Tensor, Tensor]:
    """PPO's surrogate; what a bad action loses is bounded as well."""
    loss_BS, is_clipped_BS = regular(of)
    bounded_BS = loss_BS.min(-of.advantages_BS * of.dual)
    return torch.where(of.advantages_BS < 0, bounded_BS, loss_BS), is_clipped_BS


def gspo(of: Actions) -> tuple[Tensor, Tensor]:
    """One ratio for each row, with the gradient of each of its targets."""
    gain_BS = of.logps_BS - of.old_BS
    of_row_B1 = losses.mean_of_row(gain_BS, of.batch).detach()[:, None]
    return of.surrogate((of.logps_BS - of.logps_BS.detach() + of_row_B1).clamp(max=10).exp())


def sapo(of: Actions) -> tuple[Tensor, Tensor]:
    """A sigmoid of the ratio in place of its clipped value: nothing is clipped."""
    steepness_BS = torch.where(of.advantages_BS > 0, GOOD, BAD)
    gate_BS = (steepness_BS * (of.ratios() - 1)).sigmoid() * 4 / steepness_BS
    return -gate_BS * of.advantages_BS, torch.zeros_like(gate_BS)


def cispo(of: Actions) -> tuple[Tensor, Tensor]:
    """A policy gradient that is weighted by clipped ratios."""
    ratio_BS = of.ratios()
    near_BS = ratio_BS.clamp(1 - BELOW, 1 + ABOVE)
    return -near_BS.detach() * of.advantages_BS * of.logps_BS, near_BS != ratio_BS


def importance_sampling(of: Actions) -> tuple[Tensor, None]:
    """A policy gradient that is weighted by ratios."""
    return -(of.logps_BS - of.old_BS).exp() * of.advantages_BS, None


LOSSES: dict[str, Loss] = {
    "regular": regular,
    "dual_clip": dual_clip,
    "gspo": gspo,
    "sapo": sapo,
    "cispo": cispo,
    "importance_sampling": importance_sampling,
}
# Estimates of the KL from a reference, of the gain over it in log-probability.
KLS: dict[str, Callable[[Tensor], Tensor]] = {
    # The bounds are the release's own.
    "k3": lambda gain_BS: losses.k3(gain_BS.clamp(-20, 20)).clamp(max=10),
    "k2": losses.k2,
    "k1": lambda gain_BS: gain_BS,
    "abs": torch.abs,
}
