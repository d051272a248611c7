"""fp64 that stays fp64, whatever a model's code asks for.

Models cast norms, rotations, softmaxes and routers to fp32 on purpose. In a case of fp64 that
would cost nine digits, so a function that asks for fp32 gets fp64 there, in the step and in its
reference alike. A needless cast to fp32 shows in the cases in fp32 and bf16, where nothing is
changed.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

REQUESTED, USED = torch.float32, torch.float64


class Exact(TorchFunctionMode):
    """Replaces `torch.float32` by `torch.float64` in the arguments of every torch function.

    torch calls no mode inside of backward. So what computes in Python there turns this one on:
    functions of autograd that somebody wrote, and layers that are computed again.
    """

    # The default dtype in whose place fp64 is now, or None where nothing is replaced. It is not of
    # a thread, because backward runs functions in threads of its own.
    replaced: ClassVar[torch.dtype | None] = None
    backward: "ClassVar[Backward | None]" = None

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
        if func is Tensor.backward:
            with _in_backward(args[0]):
                return func(*args, **(kwargs or {}))
        if func is Tensor.float:
            func = Tensor.double
        given = {name: _exact(value) for name, value in (kwargs or {}).items()}
        return func(*map(_exact, args), **given)


def _exact(value: Any) -> Any:
    return USED if value is REQUESTED else value


class Backward:
    """What is on while backward runs, in each of its threads."""

    def __init__(self) -> None:
        self._on = threading.local()

    @property
    def modes(self) -> list[ExitStack]:
        if not hasattr(self._on, "modes"):
            self._on.modes = []
        modes: list[ExitStack] = self._on.modes
        return modes

    def enter(self, *_: Any) -> None:
        mode = ExitStack()
        mode.enter_context(Exact())
        self.modes.append(mode)

    def leave(self, *_: Any) -> None:
        self.modes.pop().close()


def exact_again(model: nn.Module) -> None:
    """Have each module of a model compute exactly where backward calls it again.

    Each, because transformers has the parts of a layer called again, and not the layer.
    """
    for module in model.modules():
        entered = _Again()
        module.register_forward_pre_hook(entered.enter)
        module.register_forward_hook(entered.leave, always_call=True)


class _Again:
    """Turns a mode on in a call of a module, unless one around it has."""

    def __init__(self) -> None:
        self._has_entered = False

    def enter(self, *_: Any) -> None:
        if Exact.backward and not Exact.backward.modes:
            self._has_entered = True
            Exact.backward.enter()

    def leave(self, *_: Any) -> None:
        if Exact.backward and self._has_entered:
            self._has_entered = False
            Exact.backward.leave()


@contextmanager
def _in_backward(loss: Tensor) -> Iterator[None]:
    around, Exact.backward = Exact.backward, Backward()
    for node in _written_in_python(loss.grad_fn):
        node.register_prehook(Exact.backward.enter)
        node.register_hook(Exact.backward.leave)
    try:
        yield
    finally:
        Exact.backward = around


def _written_in_python(root: Any) -> Iterator[Any]:
    """Yield the nodes of a graph that are functions which somebody wrote in Python."""
    found, left = {None, root}, [root] if root else []
    while left:
        node = left.pop()
        if isinstance(node, BackwardCFunction):
            yield node
        for ahead, _ in node.next_functions:
            if ahead not in found:
                found.add(ahead)
                left.append(ahead)


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
