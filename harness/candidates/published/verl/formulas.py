"""What an actor's loss is made of: losses of targets, estimates of a KL, and averages.

Legend: B rows, S columns. A number of a target stands in the target's own column.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.recipes import losses
from harness.recipes.batch import IGNORED, Batch

# Clipping from below and of bad actions; sigmoids of SAPO for good and bad actions, and the
# penalty of DRO.
LOW, DUAL, GOOD, BAD, DRO = 0.2, 3.0, 1.0, 1.05, 0.1
# What seq-mean-token-sum-norm divides the sum of a row by.
SCALE = 8
# mean(a number of each target, batch) -> one number.
Mean = Callable[[Tensor, Batch], Tensor]


def sum_of_rows(x_BS: Tensor, batch: Batch) -> Tensor:
    return (x_BS * (batch["labels"] != IGNORED)).sum(1)


# How the losses of tokens become one number.
MEANS: dict[str, Mean] = {
    "token-mean": losses.mean,
    "token-sum": lambda x_BS, batch: sum_of_rows(x_BS, batch).sum(),
    "seq-mean-token-sum": lambda x_BS, batch: sum_of_rows(x_BS, batch).mean(),
    "seq-mean-token-sum-norm": lambda x_BS, batch: sum_of_rows(x_BS, batch).mean() / SCALE,
    "seq-mean-token-mean": lambda x_BS, batch: losses.mean_of_row(x_BS, batch).mean(),
}


@dataclass(frozen=True)
class Actions:
    """How likely each target is, how likely it was, and what it gains."""

    logps_BS: Tensor
    old_BS: Tensor
    advantages_BS: Tensor
    batch: Batch
    # What ratios are clipped to.
    high: float

    def ratios(self) -> Tensor:
        return (self.logps_BS - self.old_BS).clamp(-20, 20).exp()

    def surrogate(self, ratio_BS: Tensor) -> Tensor:
        """The worse of what a ratio and its clipped value lose."""
        near_BS = ratio_BS.clamp(1 - LOW, 1 + self.high)
        return torch.max(-self.advantages_BS * ratio_BS, -self.advantages_BS * near_BS)


def vanilla(of: Actions) -> Tensor:
    """PPO's surrogate; what a bad action loses is bounded by DUAL."""
    worse_BS = of.surrogate(of.ratios())
    bounded_BS = worse_BS.min(-of.advantages_BS * DUAL)
    return torch.where(of.advantages_BS < 0, bounded_BS, worse_BS)


def gspo(of: Actions) -> Tensor:
    """One ratio for each row, with the gradient of each of its targets."""
    gain_BS = of.logps_BS - of.old_BS
    of_row_B1 = losses.mean_of_row(gain_BS, of.batch).detach()[:, None]
    return of.surrogate((of.logps_BS - of.logps_BS.detach() + of_row_B1).clamp(max=10).exp())


def sapo(of: Actions) -> Tensor:
    """A sigmoid of the ratio in place of its clipped value."""
    steepness_BS = torch.where(of.advantages_BS > 0, GOOD, BAD)
    gate_BS = (steepness_BS * (of.ratios() - 1)).sigmoid() * 4 / steepness_BS
    return -gate_BS * of.advantages_BS


def dppo(of: Actions) -> Tensor:
    """A policy gradient of actions whose probability moved no farther than the bounds."""
    moved_BS = of.logps_BS.exp() - of.old_BS.exp()
    near_BS = torch.where(of.advantages_BS > 0, moved_BS <= of.high, moved_BS >= -LOW)
    weight_BS = of.ratios().clamp(max=DUAL).detach() * near_BS
    return -of.advantages_BS * weight_BS * of.logps_BS


def cispo(of: Actions) -> Tensor:
    """A policy gradient that is weighted by clipped ratios."""
    weight_BS = of.ratios().clamp(1 - LOW, 1 + of.high).detach()
    return -weight_BS * of.advantages_BS * of.logps_BS


def dro(of: Actions) -> Tensor:
    """A policy gradient with a penalty on the log ratio."""
    penalty_BS = (of.logps_BS - of.old_BS).square() * DRO / 2
    return penalty_BS - of.logps_BS * of.advantages_BS


LOSSES: dict[str, Callable[[Actions], Tensor]] = {
    "vanilla": vanilla,
    "dppo_tv": dppo,
    "gspo": gspo,
    "sapo": sapo,
    "gpg": lambda of: -of.logps_BS * of.advantages_BS,
    "dro": dro,
    "cispo": cispo,
}
# Estimates of the KL from a reference, of the gain over it in log-probability.
KLS: dict[str, Callable[[Tensor], Tensor]] = {
    "low_var_kl": lambda gain_BS: losses.k3(gain_BS.clamp(-20, 20)).clamp(max=10),
    "kl": lambda gain_BS: gain_BS,
    "abs": torch.abs,
    "mse": lambda gain_BS: gain_BS.square() / 2,
}
