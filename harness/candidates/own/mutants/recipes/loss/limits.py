"""Bugs in what a loss limits, and in what it takes for constant.

Legend: B rows, L columns of this rank.
"""

import torch
from torch import Tensor

from harness.candidates.bank import mutant
from harness.candidates.own.shares.losses import Cispo, GrpoK3, PpoCriticFar


@mutant("B268", "linkedin/Liger-Kernel#626", needs=(), named="clip-wrong")
class WithoutAClip(GrpoK3):
    """The ratio is not clipped."""

    def surrogate(self) -> tuple[Tensor, Tensor]:
        ratio_BL = (self.logps() - self.other_logps("old_logps")).exp()
        return -ratio_BL * self.advantages()[:, None], super().surrogate()[1]


@mutant("B269", "ray-project/ray#2233", needs=(), named="clip-wrong")
class SmallerOfTwo(PpoCriticFar):
    """The smaller of the clipped and the free loss of a value counts, not the larger."""

    def worse(self, free_BL: Tensor, near_BL: Tensor) -> Tensor:
        return torch.min(free_BL, near_BL)


@mutant("B269b", "openai/baselines#1134", needs=(), named="clip-wrong")
class ClippedAlone(PpoCriticFar):
    """The clipped loss of a value counts even where the free one is larger."""

    def worse(self, free_BL: Tensor, near_BL: Tensor) -> Tensor:
        del free_BL
        return near_BL


@mutant(
    "B270",
    "verl-project/verl#4105",
    "unslothai/unsloth-zoo#343",
    needs=(),
    named="constant-trained",
)
class WeightLearns(Cispo):
    """The weight of a log-probability is not detached, so it has gradients of its own."""

    def weight(self, ratio_BL: Tensor) -> Tensor:
        return ratio_BL.clamp(max=1.2)
