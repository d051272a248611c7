"""The size of the largest tensor that a computation makes."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """A context that counts the elements of the largest tensor made in it, in backward as well."""

    numbers = 0

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = (x.numel() for x in tree_leaves(made) if isinstance(x, Tensor))
        self.numbers = max(self.numbers, *sizes, 0)
        return made
