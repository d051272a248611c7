"""Weights of any model, drawn by the name of each parameter and the seed.

The order of parameters does not matter, so a wrapper, an adapter or another class of the same
model gets the same numbers.
"""

import hashlib
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from harness.case import Case
from harness.reference.weights import TORCH_DTYPES

# As for our own model: attention is far from uniform, and losses of tokens differ by nats.
GAIN, SPREAD = 1.6, 0.3


def fill(
    model: nn.Module,
    case: Case,
    constructed: Mapping[str, Tensor],
    *,
    nudge: float = 0.0,
    direction: str = "",
) -> None:
    """Give each parameter its weights, rounded to the case's dtype and held in that of the model.

    A vector stays near the values that its constructor gave it, such as the ones of a norm. A
    parameter with more dims is drawn anew. `nudge` moves all along a direction from the seed
    and the name of the direction.
    """
    nudge += case.nudge
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    for name, parameter in model.named_parameters():
        uniform = _uniform(case.seed, name, parameter.shape)
        if parameter.ndim < 2:
            values = constructed[name].double() + SPREAD * uniform
        else:
            values = uniform * _spread(parameter, is_embedding=id(parameter) in embeddings)
        if nudge:
            values = values + nudge * _uniform(
                case.seed, f"nudge{direction}/{name}", parameter.shape
            )
        rounded = values.to(TORCH_DTYPES[case.dtype])
        parameter.data = rounded.to(parameter.dtype).to(parameter.device)


def _spread(parameter: Tensor, *, is_embedding: bool) -> float:
    """Half the width of a uniform distribution with a standard deviation that suits the fan-in."""
    if is_embedding:
        return math.sqrt(3.0)
    # Some models have the inputs of their experts in dim 1, and some in the last dim.
    fan_in = parameter[0].numel() if parameter.ndim < 3 else math.sqrt(parameter[0].numel())
    return GAIN * math.sqrt(3.0 / fan_in)


def _uniform(seed: int, name: str, shape: torch.Size) -> Tensor:
    """Numbers in [-1, 1), the same on every torch, platform and rank."""
    key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16], "little")
    bits = np.random.Philox(key=key).random_raw(math.prod(shape))
    return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0).view(
        shape
    )
