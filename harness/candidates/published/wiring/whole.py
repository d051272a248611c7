"""Attention as nobody would train with it: each rank gathers all keys and values. For mends.

Legend: B rows, L tokens of this rank, K those of all ranks, N heads, H head dim.
"""

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import ProcessGroup

from harness.candidates.published.wiring.decoder import eager


class Gathered(torch.autograd.Function):
    """The tokens of all ranks, in the order of ranks; each gets the sum of its gradients."""

    @staticmethod
    def forward(ctx: Any, x_BL: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return gathered(x_BL, 1, group)

    @staticmethod
    def backward(ctx: Any, grad_BK: Tensor) -> tuple[Tensor, None]:
        total_BK = grad_BK.contiguous().clone()
        dist.all_reduce(total_BK, group=ctx.group)
        return total_BK.chunk(ctx.group.size(), 1)[ctx.group.rank()], None


def gathered(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """Of as many tokens on each rank; without gradients."""
    received = [
        torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size())
    ]
    dist.all_gather(received, x.contiguous(), group=group)
    return torch.cat(received, dim)


def attend(
    q_BLNH: Tensor,
    k_BLNH: Tensor,
    v_BLNH: Tensor,
    where: tuple[Tensor, Tensor],
    window: int,
    group: ProcessGroup,
) -> Tensor:
    """Causal; `where` is the row of each token and its place there. A window below 0 is none."""
    row_L, place_L = where
    row_K, place_K = (gathered(x_L, 0, group) for x_L in where)
    back_LK = place_L[:, None] - place_K
    seen_LK = (row_L[:, None] == row_K) & (back_LK >= 0)
    if window >= 0:
        # As flash-attn has it: so many before the token itself.
        seen_LK &= back_LK <= window
    gather: Any = Gathered.apply
    k_BKNH, v_BKNH = (gather(x, group) for x in (k_BLNH, v_BLNH))
    return eager(q_BLNH, k_BKNH, v_BKNH, seen_LK.expand(len(q_BLNH), -1, -1))


def zigzag(length: int, group: ProcessGroup) -> Tensor:
    """The places in a row of a rank's tokens: a piece from the front, and one from the back."""
    half, index, pieces = length // 2, group.rank(), 2 * group.size()
    near = torch.arange(half)
    return torch.cat((index * half + near, (pieces - 1 - index) * half + near))
