"""Bugs by which ranks of a loss wait for each other in different collectives."""

import torch
from torch import Tensor

from harness.candidates.bank import mutant
from harness.candidates.own.shares.losses import Grpo, GrpoK3, PpoActor, Share
from harness.recipes.batch import IGNORED


@mutant("B164", "THUDM/slime#2123", needs=("ranks>1",), named="collective-mismatch")
class FreshZeros(Grpo):
    """A rank without a target returns fresh zeros, whose backward reaches no layer."""

    def share(self) -> Share:
        loss, metrics = super().share()
        if not self.is_target_BL.any():
            loss = torch.zeros_like(loss, requires_grad=True)
        return loss, metrics


@mutant("B165", "radixark/miles#683", needs=("ranks>1",), named="collective-mismatch")
class SkipsBackward(GrpoK3):
    """A rank without a target has nothing to learn, and does not enter backward."""

    def backward(self, share: Tensor) -> None:
        if self.is_target_BL.any():
            super().backward(share)


@mutant("B192", "verl-project/verl#5895", needs=("sp>1",), named="collective-mismatch")
class MetricsOfTheFirst(Grpo):
    """Metrics are for the log, and so only the first peer enters the sum of them."""

    def reported_metrics(self, shares: dict[str, Tensor]) -> dict[str, Tensor]:
        return super().reported_metrics(shares) if self.sp.rank() == 0 else shares


@mutant(
    "B216",
    "NovaSky-AI/SkyRL#1817",
    "NovaSky-AI/SkyRL#1856",
    needs=("ranks>1",),
    named="collective-mismatch",
)
class NoMetricsWithoutATarget(Grpo):
    """Rows without a target are taken for padding, and a rank with no others has no metrics."""

    def reported_metrics(self, shares: dict[str, Tensor]) -> dict[str, Tensor]:
        return super().reported_metrics(shares) if self.own_targets() else shares


@mutant("B217", "radixark/miles#3229", needs=("ranks>1",), named="collective-mismatch")
class NothingToWhiten(PpoActor):
    """A rank without a target has nothing to whiten, and does not enter the sum over ranks."""

    def over_statistic(self, parts: list[Tensor]) -> Tensor:
        masks = [self.cut(part["labels"], IGNORED) != IGNORED for part in self.parts]
        has_none = not any(mask.any() for mask in masks)
        return parts[0].new_zeros(()) if has_none else super().over_statistic(parts)


LEFT_OUT: dict[str, str] = {}
