"""fp64 that stays fp64, whatever a model's code asks for.

Models cast norms, rotations, softmaxes and routers to fp32 on purpose. In a case of fp64 that
would cost nine digits, so a function that asks for fp32 gets fp64 there, in the step and in its
reference alike. A needless cast to fp32 shows in the cases in fp32 and bf16, where nothing is
changed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode

REQUESTED, USED = torch.float32, torch.float64


class Exact(TorchFunctionMode):
    """Replaces `torch.float32` by `torch.float64` in the arguments of every torch function."""

    # The default dtype in whose place fp64 is now, or None where nothing is replaced. It is not of
    # a thread, because backward runs functions in threads of its own.
    replaced: ClassVar[torch.dtype | None] = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        if Exact.replaced is None:
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        given = {name: _exact(value) for name, value in (kwargs or {}).items()}
        return func(*map(_exact, args), **given)


def _exact(value: Any) -> Any:
    return USED if value is REQUESTED else value


@contextmanager
def exact() -> Iterator[None]:
    """Compute in fp64 throughout; tensors without a stated dtype are fp64 too."""
    with Exact(), _replacing(torch.get_default_dtype(), USED):
        yield


@contextmanager
def as_asked() -> Iterator[None]:
    """Compute in the dtypes that code asks for, also inside `exact`."""
    with _replacing(None, Exact.replaced or torch.get_default_dtype()):
        yield


@contextmanager
def _replacing(replaced: torch.dtype | None, default: torch.dtype) -> Iterator[None]:
    before = Exact.replaced, torch.get_default_dtype()
    Exact.replaced = replaced
    torch.set_default_dtype(default)
    try:
        yield
    finally:
        Exact.replaced = before[0]
        torch.set_default_dtype(before[1])
