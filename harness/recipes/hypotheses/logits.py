"""What a step can do wrong with logits, between its head and its loss.

Legend: V vocabulary; any dims may come before it.
"""

from functools import partial

from torch import Tensor
from torch.nn import functional as F

from harness.recipes.hypothesis import Hypothesis

# Those that people sample with; a step with another one gets no name.
TEMPERATURES = (0.6, 0.7, 0.8, 0.9)
# Kernels read a vocabulary in tiles of such sizes, and weights are padded to a multiple of them.
TILES = (8, 16, 64, 128)


def of_logits() -> list[Hypothesis]:
    scaled = [
        Hypothesis(
            "logits-scaled",
            f"logits are {how} by {temperature}",
            logits=partial(_times, factor=temperature**power),
        )
        for temperature in TEMPERATURES
        for how, power in (("divided", -1), ("multiplied", 1))
    ]
    return scaled + [
        Hypothesis(
            "pad-leak",
            f"the vocabulary is padded to tiles of {tile}, and the padding's zeros count",
            logits=partial(_with_zeros, tile=tile),
        )
        for tile in TILES
    ]


def _times(logits_V: Tensor, *, factor: float) -> Tensor:
    return logits_V * factor


def _with_zeros(logits_V: Tensor, *, tile: int) -> Tensor:
    return F.pad(logits_V, (0, -logits_V.shape[-1] % tile))
