"""What an actor's loss is made of: losses of targets, estimates of a KL, and averages.

Legend: B rows, S columns. A number of a target stands in the target's own column.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from harness.candidates.published.wiring.actions import Actions, k3
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


def dppo(of: Actions) -> Tensor:
    """A policy gradient of actions whose probability moved no farther than the bounds."""
    moved_BS = of.logps_BS.exp() - of.old_BS.exp()
    near_BS = torch.where(of.advantages_BS > 0, moved_BS <= of.high, moved_BS >= -of.low)
    weight_BS = of.ratios().clamp(max=of.dual).detach() * near_BS
    return -of.advantages_BS * weight_BS * of.logps_BS


def dro(of: Actions) -> Tensor:
    """A policy gradient with a penalty on the log ratio."""
    penalty_BS = (of.logps_BS - of.old_BS).square() * DRO / 2
    return penalty_BS - of.logps_BS * of.advantages_BS


LOSSES: dict[str, Callable[[Actions], Tensor]] = {
    "vanilla": lambda of: of.dual_clipped()[0],
    "dppo_tv": dppo,
    "gspo": lambda of: of.surrogate(of.ratios_of_rows())[0],
    "sapo": lambda of: of.gated(GOOD, BAD),
    "gpg": lambda of: -of.logps_BS * of.advantages_BS,
    "dro": dro,
    "cispo": lambda of: of.weighted(of.low, of.high)[0],
}
# Estimates of the KL from a reference, of the gain over it in log-probability.
KLS: dict[str, Callable[[Tensor], Tensor]] = {
    "low_var_kl": k3,
    "kl": lambda gain_BS: gain_BS,
    "abs": torch.abs,
    "mse": lambda gain_BS: gain_BS.square() / 2,
}
