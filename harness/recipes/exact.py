"""fp64 that stays fp64, whatever a model's code asks for.

Models cast norms, rotations, softmaxes and routers to fp32 on purpose. In a case of fp64 that
would cost nine digits, so a function that asks for fp32 gets fp64 there, in the step and in its
reference alike. A needless cast to fp32 shows in the cases in fp32 and bf16, where nothing is
changed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

REQUESTED, USED = torch.float32, torch.float64


class Exact(TorchFunctionMode):
    """Replaces `torch.float32` by `torch.float64` in the arguments of every torch function."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        given = {name: _exact(value) for name, value in (kwargs or {}).items()}
        return func(*map(_exact, args), **given)


def _exact(value: Any) -> Any:
    return USED if value is REQUESTED else value


@contextmanager
def exact() -> Iterator[None]:
    """Compute in fp64 throughout; tensors without a stated dtype are fp64 too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(USED)
    try:
        with Exact():
            yield
    finally:
        torch.set_default_dtype(before)
