"""A tensor that says it is on a GPU, and is computed on the CPU.

To torch it is on `meta`, since autograd asks a driver about every tensor on `cuda`. In
Python its device is `cuda:0`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn

from harness.pretend.rules import NotOnTheDevice, refuse

DEVICE = torch.device("cuda", 0)
# What torch, in C++, takes it for; what is asked for there means the GPU as well.
UNDERNEATH = torch.device("meta")
CPU = torch.device("cpu")
NEST = (list, tuple)
# Untyped, since torch declares as attributes what are properties.
BASE: Any = Tensor
SET_DATA = BASE.data.__set__


class Pretended(BASE):  # type: ignore[misc]
    """Said to be on the GPU; `held` has the numbers."""

    held: Tensor
    count = 0

    __torch_function__ = torch._C._disabled_torch_function_impl  # noqa: SLF001 - as documented

    @staticmethod
    def __new__(cls: type[Self], held: Tensor) -> Self:
        made: Self = Tensor._make_wrapper_subclass(  # noqa: SLF001 - as documented
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=UNDERNEATH,
        )
        made.held = held
        Pretended.count += 1
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})

    @property
    def device(self) -> torch.device:
        return DEVICE

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def is_meta(self) -> bool:
        return False

    @property
    def data(self) -> Tensor:
        apart: Tensor = BASE.data.__get__(self)
        return apart

    @data.setter
    def data(self, other: Tensor) -> None:
        if isinstance(other, Pretended):
            SET_DATA(self, other)
            self.held = other.held
        else:
            move(self, other)

    @property
    def grad(self) -> Tensor | None:
        gradient: Tensor | None = BASE.grad.__get__(self)
        return gradient

    @grad.setter
    def grad(self, other: Tensor | None) -> None:
        if other is not None and other.device != DEVICE:
            raise NotOnTheDevice("Tensor.grad", DEVICE, other.device)
        BASE.grad.__set__(self, other)

    def get_device(self) -> int:
        return DEVICE.index

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        return self.held.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu() to copy the "
            "tensor to host memory first."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        memo[id(self)] = copied = like(self, self.detach().clone())
        return copied

    def __repr__(self) -> str:
        return f"{repr(self.held)[:-1]}, device='{DEVICE}')"

    def __format__(self, spec: str) -> str:
        return format(self.held, spec)


def made() -> int:
    """How many tensors this process has had on the pretended GPU."""
    return Pretended.count


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """The numbers of another: to be trained if the first one is, and as what."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(other, tensor.requires_grad)
    return other.detach().requires_grad_(tensor.requires_grad)


def move(tensor: Tensor, other: Tensor) -> None:
    """Move a tensor to the device of another, and give it its numbers."""
    torch.utils.swap_tensors(tensor, like(tensor, other))


def values(nest: Any) -> Any:
    """A nest of tensors as it is on the CPU."""
    return mapped(holding, nest)


def computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operation makes of these, on the device where CUDA would make it."""
    tensors = list(tensors_in((*args, *kwargs.values())))
    theirs = [tensor for tensor in tensors if not isinstance(tensor, Pretended)]
    there = len(theirs) < len(tensors)
    if there and (theirs or func.namespace == "c10d"):
        refuse(func, args, kwargs, theirs, DEVICE)
    # An operation in place gives back what it was given.
    known = {id(holding(tensor)): tensor for tensor in tensors}
    if kwargs.get("device") is not None:
        there = kwargs["device"].type != "cpu"
    held = {name: values(value) for name, value in kwargs.items()}
    answer = func(*values(args), **held)

    def said(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in known:
            return Pretended(value) if there else value
        given = known[id(value)]
        if torch.Tag.inplace_view in func.tags and isinstance(given, Pretended):
            given.data = Pretended(value)
        return given

    return mapped(said, answer)


def holding(value: Any) -> Any:
    """What stands for it on the CPU."""
    if isinstance(value, Pretended):
        return value.held
    return CPU if isinstance(value, torch.device) else value


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors in a nest of lists and tuples."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, NEST):
            yield from tensors_in(value)


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Change every leaf of a nest."""
    if isinstance(value, NEST):
        return type(value)([mapped(change, each) for each in value])
    return change(value)
