"""What a computation needs room for."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that anybody makes, forward or backward."""

    numbers = 0

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = (x.numel() for x in tree_leaves(made) if isinstance(x, Tensor))
        self.numbers = max(self.numbers, *sizes, 0)
        return made
