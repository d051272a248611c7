"""A tensor that reports a GPU as its device, and is computed on the CPU.

Its device is `cuda:0` in Python, and `meta` in C++, where autograd would ask a driver about every
tensor on `cuda`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn

from harness.pretend.rules import NotOnTheDevice, refuse

DEVICE = torch.device("cuda", 0)
# The device in C++. An operation that asks for it means the GPU as well.
UNDERNEATH = torch.device("meta")
CPU = torch.device("cpu")
NEST = (list, tuple)
# Any, because torch's type hints declare its properties as plain attributes.
BASE: Any = Tensor
SET_DATA = BASE.data.__set__


class Pretended(BASE):  # type: ignore[misc]
    """A tensor on the pretended GPU; `held` is the tensor on the CPU with its values."""

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
        return compute(func, args, kwargs or {})

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
        detached: Tensor = BASE.data.__get__(self)
        return detached

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


def tensors_made() -> int:
    """Return how many tensors this process has made on the pretended GPU."""
    return Pretended.count


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return the values of `other`, as a parameter and trained if `tensor` is that."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(other, tensor.requires_grad)
    return other.detach().requires_grad_(tensor.requires_grad)


def move(tensor: Tensor, other: Tensor) -> None:
    """Give a tensor the device and the values of another, keeping its identity."""
    torch.utils.swap_tensors(tensor, like(tensor, other))


def on_cpu(nest: Any) -> Any:
    """Return a nest of values with every tensor and device replaced by its counterpart."""
    return map_leaves(_counterpart, nest)


def compute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do an operation on the CPU, and return its result on the device that CUDA would choose."""
    tensors = list(tensors_in((*args, *kwargs.values())))
    cpu_tensors = [tensor for tensor in tensors if not isinstance(tensor, Pretended)]
    is_on_gpu = len(cpu_tensors) < len(tensors)
    if is_on_gpu and (cpu_tensors or func.namespace == "c10d"):
        refuse(func, args, kwargs, cpu_tensors, DEVICE)
    # An operation in place returns one of its arguments.
    arguments = {id(_counterpart(tensor)): tensor for tensor in tensors}
    if kwargs.get("device") is not None:
        is_on_gpu = kwargs["device"].type != "cpu"
    result = _run_on_cpu(func, on_cpu(args), {name: on_cpu(kwargs[name]) for name in kwargs})

    def on_device(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in arguments:
            return Pretended(value) if is_on_gpu else value
        argument = arguments[id(value)]
        if torch.Tag.inplace_view in func.tags and isinstance(argument, Pretended):
            argument.data = Pretended(value)
        return argument

    return map_leaves(on_device, result)


def _run_on_cpu(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    # CUDA's histogram counts integers too; that of the CPU does not.
    if func is torch.ops.aten.histc.default and not args[0].is_floating_point():
        return func(args[0].double(), *args[1:], **kwargs).to(args[0].dtype)
    return func(*args, **kwargs)


def _counterpart(value: Any) -> Any:
    """Return the value on the CPU for a value of the GPU."""
    if isinstance(value, Pretended):
        return value.held
    return CPU if isinstance(value, torch.device) else value


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors in a nest of lists and tuples."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, NEST):
            yield from tensors_in(value)


def map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Return a nest of lists and tuples with every leaf changed."""
    if isinstance(value, NEST):
        return type(value)([map_leaves(change, each) for each in value])
    return change(value)
