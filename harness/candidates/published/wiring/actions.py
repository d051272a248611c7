"""What the targets of a policy lose, as several libraries compute it.

Legend: B rows, S columns. A number of a target stands in the target's own column.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.recipes import losses
from harness.recipes.batch import Batch


@dataclass(frozen=True)
class Actions:
    """How likely each target is, how likely it was, and what it gains."""

    logps_BS: Tensor
    old_BS: Tensor
    advantages_BS: Tensor
    batch: Batch
    # How far below and above one ratios may be, and the ratio with which a bad action loses most.
    low: float
    high: float
    dual: float

    def ratios(self) -> Tensor:
        """How much likelier each target became, with the bound that libraries have."""
        return (self.logps_BS - self.old_BS).clamp(-20, 20).exp()

    def ratios_of_rows(self) -> Tensor:
        """One ratio for each row, with the gradient of each of its targets."""
        gain_BS = self.logps_BS - self.old_BS
        of_row_B1 = losses.mean_of_row(gain_BS, self.batch).detach()[:, None]
        return (self.logps_BS - self.logps_BS.detach() + of_row_B1).clamp(max=10).exp()

    def surrogate(self, ratio_BS: Tensor) -> tuple[Tensor, Tensor]:
        """The worse of what a ratio and its clipped value lose, and where it is the latter."""
        free_BS = -ratio_BS * self.advantages_BS
        near_BS = -ratio_BS.clamp(1 - self.low, 1 + self.high) * self.advantages_BS
        return torch.max(free_BS, near_BS), near_BS > free_BS

    def dual_clipped(self) -> tuple[Tensor, Tensor]:
        """PPO's surrogate, with a bound for what a bad action loses."""
        loss_BS, is_clipped_BS = self.surrogate(self.ratios())
        bounded_BS = loss_BS.min(-self.advantages_BS * self.dual)
        return torch.where(self.advantages_BS < 0, bounded_BS, loss_BS), is_clipped_BS

    def gated(self, good: float, bad: float) -> Tensor:
        """A sigmoid of the ratio in place of its clipped value, as in SAPO."""
        steepness_BS = torch.where(self.advantages_BS > 0, good, bad)
        gate_BS = (steepness_BS * (self.ratios() - 1)).sigmoid() * 4 / steepness_BS
        return -gate_BS * self.advantages_BS

    def weighted(self, below: float, above: float) -> tuple[Tensor, Tensor]:
        """A policy gradient that is weighted by clipped ratios, as in CISPO."""
        ratio_BS = self.ratios()
        near_BS = ratio_BS.clamp(1 - below, 1 + above)
        return -near_BS.detach() * self.advantages_BS * self.logps_BS, near_BS != ratio_BS


def k3(gain_BS: Tensor) -> Tensor:
    """An estimate of the KL from a reference, with the bounds that libraries have."""
    return losses.k3(gain_BS.clamp(-20, 20)).clamp(max=10)
