"""Tensors as numbers on the host."""

from typing import Any

import numpy as np
from torch import Tensor


class Trace(dict[str, Any]):
    """What plain training comes to: by key, values and the numbers of their tokens."""

    def add(self, key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
        self[key] = numbers(tensor), numbers(tokens)


def numbers(tensor: Tensor | None) -> Any:
    """A copy on the host, wide enough for every dtype."""
    if tensor is None:
        return None
    host = tensor.detach().cpu()
    return np.array((host.double() if host.is_floating_point() else host).numpy())
