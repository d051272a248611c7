"""Messages between GPUs over gloo, refused before they are sent.

gloo stages most collectives through the host. Not these: it would hand an address on a GPU to a
socket, which nobody checks.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import distributed as dist

# The methods of a group that every message of torch.distributed ends in.
METHODS = ("send", "recv", "recv_anysource", "alltoall")


class NotOverGloo(ValueError):
    """The message names the operation and the device."""


def refuse_over_gloo() -> None:
    """From now on each raises where its group is gloo's and its tensor is on a GPU."""
    for name in METHODS:
        setattr(dist.ProcessGroup, name, _refused(getattr(dist.ProcessGroup, name), name))


def _refused(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(method)
    def checked(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        for tensor in _tensors([*args, *kwargs.values()]):
            if tensor.is_cuda and dist.get_backend(group) == "gloo":
                raise NotOverGloo(
                    f"{name}: gloo sends tensors of the host only, and this one is on "
                    f"{tensor.device}; send a copy on the host, use all_to_all_single or "
                    "all_gather, or run with --transport nccl"
                )
        return method(group, *args, **kwargs)

    return checked


def _tensors(values: list[Any]) -> list[torch.Tensor]:
    flat = [each for v in values for each in (v if isinstance(v, list | tuple) else [v])]
    return [each for each in flat if isinstance(each, torch.Tensor)]
