"""Intercept calls that have no tensor of the pretended GPU, and may return one."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from harness.pretend.over_gloo import refuse_over_gloo
from harness.pretend.tensor import DEVICE, SET_DATA, UNDERNEATH, Pretended, compute, move, on_cpu

# These return their tensor: all memory counts as pinned, and all work is done.
NOTHING = (Tensor.pin_memory, Tensor.record_stream)


class Operations(TorchDispatchMode):
    """Computes operations that make a tensor on the GPU, or copy one to it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch imports dynamo, which takes two seconds.
        return False

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func.namespace == "c10d":
            refuse_over_gloo(func.overloadpacket.__name__, args)
        return compute(func, args, kwargs or {})


class Calls(TorchFunctionMode):
    """Rewrites calls of torch functions that would otherwise ask a driver."""

    def __torch_function__(
        self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.device:
            return func(*args, **kwargs)
        args = [indexed(value) for value in args]
        kwargs = {name: indexed(value) for name, value in kwargs.items() if name != "pin_memory"}
        if func in NOTHING:
            return args[0]
        if func is Tensor.cuda:
            stated = [*args[1:2], kwargs.pop("device", None), DEVICE]
            func, args = Tensor.to, [args[0], next(each for each in stated if each is not None)]
        if func is Tensor.to:
            return convert(*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor) and args and isinstance(args[0], list | tuple):
            args[0] = on_cpu(args[0])
        if func == SET_DATA and isinstance(args[1], Pretended) > isinstance(args[0], Pretended):
            return move(*args)
        if args and isinstance(args[0], Pretended):
            if func is Tensor.new_tensor:
                defaults = {"dtype": args[0].dtype, "device": DEVICE}
                return torch.tensor(*args[1:], **defaults | kwargs)
            if func in (Tensor.__getitem__, Tensor.__setitem__):
                args[1] = with_tensors(args[1])
        return func(*args, **kwargs)


def convert(tensor: Tensor, *where: Any, **options: Any) -> Tensor:
    """Do `Tensor.to`, without a copy if the tensor is on the GPU and is to stay there.

    torch decides that by the device underneath, so name that device instead of the GPU.
    """
    where = tuple(indexed(f"cuda:{each}") if type(each) is int else each for each in where)
    if isinstance(tensor, Pretended):
        where = tuple(UNDERNEATH if each == DEVICE else each for each in where)
        options = {name: UNDERNEATH if each == DEVICE else each for name, each in options.items()}
    return tensor.to(*where, **options)


def with_tensors(index: Any) -> Any:
    """Make tensors of lists in an index: torch would make them on the device underneath."""
    if isinstance(index, tuple):
        return tuple(map(with_tensors, index))
    return torch.tensor(index) if isinstance(index, list | range | np.ndarray) else index


def indexed(value: Any) -> Any:
    """Return a device of the GPU with its index, which torch would ask a driver for."""
    if isinstance(value, str) and value.startswith("cuda"):
        value = torch.device(value)
    if not isinstance(value, torch.device) or value.type != "cuda":
        return value
    if value.index not in (None, DEVICE.index):
        raise RuntimeError(f"{value}: invalid device ordinal; this rank has {DEVICE}")
    return DEVICE
