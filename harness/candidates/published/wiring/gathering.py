"""An all_gather with a backward that works over gloo.

That of torch.distributed.nn fails in groups without rank 0.
"""

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import ProcessGroup


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        pieces = [
            torch.empty_like(tensor, memory_format=torch.contiguous_format)
            for _ in range(group.size())
        ]
        dist.all_gather(pieces, tensor.contiguous(), group=group)
        return torch.stack(pieces)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        dist.all_reduce(grad := grad.contiguous().clone(), group=ctx.group)
        return grad[ctx.group.rank()], None


def all_gather(tensor: Tensor, group: ProcessGroup) -> tuple[Tensor, ...]:
    """Return the tensor of each rank; backward sums the gradients that all ranks have of it."""
    gather: Any = _AllGather.apply
    return tuple(gather(tensor, group))
