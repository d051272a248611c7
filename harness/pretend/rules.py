"""What a GPU refuses: tensors of two devices in one operation."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

# Take what is on either side.
COPIES = ("aten.copy_", "aten.copy", "aten._to_copy")
# On the GPU, by indices that may be on the CPU.
INDEXING = ("aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_")
# Take a single number from the CPU, as all do that work on one element after the other.
TAKE_A_NUMBER = (
    *("aten.fill", "aten.fill_", "aten.masked_fill", "aten.masked_fill_"),
    *("aten.index_put", "aten.index_put_", "aten._index_put_impl_"),
)


class NotOnTheDevice(RuntimeError):
    """In torch's words, but for the name of the operation."""

    def __init__(self, name: str, one: torch.device, other: torch.device) -> None:
        super().__init__(
            f"{name}: expected all tensors to be on the same device, but got {one} and {other}"
        )


def refuse(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    theirs: list[Tensor],
    device: torch.device,
) -> None:
    """Raise unless an operation on tensors of the GPU may have these of the CPU as well."""
    name = str(func.overloadpacket)
    if name in COPIES:
        return
    if name in INDEXING and not among(theirs, args[0]):
        theirs = [x for x in theirs if not among(args[1], x)]
    if name in TAKE_A_NUMBER or torch.Tag.pointwise in func.tags:
        theirs = [x for x in theirs if x.ndim or is_written(x, func, args, kwargs)]
    if theirs:
        raise NotOnTheDevice(name, device, theirs[0].device)


def among(tensors: Iterable[object], wanted: object) -> bool:
    """Whether it is one of them; that it equals one is no question to ask of tensors."""
    return any(tensor is wanted for tensor in tensors)


def is_written(tensor: Tensor, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the operation changes it in place."""
    arguments = func._schema.arguments  # noqa: SLF001 - what torch's own subclasses read
    named = {argument.name: value for argument, value in zip(arguments, args, strict=False)}
    return any(
        argument.is_write and (named | kwargs).get(argument.name) is tensor
        for argument in arguments
    )
