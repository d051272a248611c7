"""What the loss of SkyRL's policy is made of: losses of targets, estimates of a KL, and averages.

Legend: B rows, S columns, P micro-batches of all replicas. A number of a target stands in the
target's own column.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.published.wiring.actions import Actions, k3
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


# What each target loses, and which are clipped; None where nothing is logged of that.
Loss = Callable[[Actions], tuple[Tensor, Tensor | None]]


def sapo(of: Actions) -> tuple[Tensor, Tensor]:
    return of.gated(GOOD, BAD), torch.zeros_like(of.logps_BS)


def importance_sampling(of: Actions) -> tuple[Tensor, None]:
    return -(of.logps_BS - of.old_BS).exp() * of.advantages_BS, None


LOSSES: dict[str, Loss] = {
    "regular": lambda of: of.surrogate(of.ratios()),
    "dual_clip": lambda of: of.dual_clipped(),
    "gspo": lambda of: of.surrogate(of.ratios_of_rows()),
    "sapo": sapo,
    "cispo": lambda of: of.weighted(BELOW, ABOVE),
    "importance_sampling": importance_sampling,
}
# Estimates of the KL from a reference, of the gain over it in log-probability.
KLS: dict[str, Callable[[Tensor], Tensor]] = {
    "k3": k3,
    "k2": losses.k2,
    "k1": lambda gain_BS: gain_BS,
    "abs": torch.abs,
}
