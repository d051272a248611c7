"""The rules by which a GPU refuses tensors of two devices in one operation."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

# Operations that copy between any two devices.
COPIES = ("aten.copy_", "aten.copy", "aten._to_copy")
# Operations on the GPU whose indices may be on the CPU.
INDEXING = ("aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_")
# Operations that take a single number from the CPU, as all pointwise operations do.
TAKE_A_NUMBER = (
    *("aten.fill", "aten.fill_", "aten.masked_fill", "aten.masked_fill_"),
    *("aten.index_put", "aten.index_put_", "aten._index_put_impl_"),
)


class NotOnTheDevice(RuntimeError):
    """Tensors of two devices; the message is torch's own, with the name of the operation."""

    def __init__(self, name: str, one: torch.device, other: torch.device) -> None:
        super().__init__(
            f"{name}: expected all tensors to be on the same device, but got {one} and {other}"
        )


def refuse(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    cpu_tensors: list[Tensor],
    device: torch.device,
) -> None:
    """Raise `NotOnTheDevice` unless a GPU would accept these tensors of the CPU as arguments."""
    name = str(func.overloadpacket)
    if name in COPIES:
        return
    if name in INDEXING and not is_among(cpu_tensors, args[0]):
        cpu_tensors = [x for x in cpu_tensors if not is_among(args[1], x)]
    if name in TAKE_A_NUMBER or torch.Tag.pointwise in func.tags:
        cpu_tensors = [x for x in cpu_tensors if x.ndim or is_written(x, func, args, kwargs)]
    if cpu_tensors:
        raise NotOnTheDevice(name, device, cpu_tensors[0].device)


def is_among(tensors: Iterable[object], wanted: object) -> bool:
    """Whether one of them is this very object; `in` would compare the values of tensors."""
    return any(tensor is wanted for tensor in tensors)


def is_written(tensor: Tensor, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the operation changes the tensor in place."""
    arguments = func._schema.arguments  # noqa: SLF001 - what torch's own subclasses read
    named = {argument.name: value for argument, value in zip(arguments, args, strict=False)}
    return any(
        argument.is_write and (named | kwargs).get(argument.name) is tensor
        for argument in arguments
    )
