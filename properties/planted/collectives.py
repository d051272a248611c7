"""A gather through which gradients flow, for planted steps."""

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


class Gathered(torch.autograd.Function):
    """All ranks' parts along a dim; the gradient of each goes back to where it came from."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Any) -> Tensor:
        ctx.dim, ctx.group = dim, group
        x = x.movedim(dim, 0).contiguous()
        whole = x.new_empty(group.size() * len(x), *x.shape[1:])
        dist.all_gather_into_tensor(whole, x, group)
        return whole.movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        grad = grads[0].movedim(ctx.dim, 0).contiguous()
        mine = grad.new_empty(len(grad) // ctx.group.size(), *grad.shape[1:])
        dist.reduce_scatter_tensor(mine, grad, group=ctx.group)
        return mine.movedim(0, ctx.dim), None, None
