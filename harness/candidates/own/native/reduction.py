"""What is summed over ranks: token counts, the reported loss, gradients."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import ProcessGroup

from harness.reference.decoder import at_least_fp32


def summed(value: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of a scalar over the group, in rank order and so the same bits everywhere.

    Outside the graph: what a log shows, or a count. For one number, gathering is also several
    times faster than the ring of an all-reduce.
    """
    parts = [torch.empty_like(value) for _ in range(group.size())]
    dist.all_gather(parts, value.detach(), group=group)
    return torch.stack(parts).sum()


def sum_gradients(model: nn.Module, group: ProcessGroup, *, divide_by: int) -> None:
    """Every gradient becomes its sum over the group, divided; one collective for all of them.

    Half precisions are summed in fp32: a sum over ranks must not depend on their number.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([at_least_fp32(gradient).flatten() for gradient in gradients])
    dist.all_reduce(flat, group=group)
    flat /= divide_by
    pieces = flat.split([gradient.numel() for gradient in gradients])
    for gradient, piece in zip(gradients, pieces, strict=True):
        gradient.copy_(piece.view_as(gradient))


@contextmanager
def reduced_apart(model: nn.Module, reduce: Callable[[], None]) -> Iterator[None]:
    """Gradients made inside are reduced without earlier ones, which are reduced already."""
    earlier = [(p, p.grad) for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    yield
    reduce()
    for parameter, gradient in earlier:
        assert parameter.grad is not None
        parameter.grad += gradient


class GatherTokens(torch.autograd.Function):
    """All peers' pieces, in order; backward keeps this rank's piece times the group size.

    Every peer computes the same loss from the gathered tensor, so its own piece of the gradient
    is already whole. The factor pays in advance for the mean over the group that follows.
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, x_L: Tensor, group: ProcessGroup
    ) -> Tensor:
        ctx.group = group  # type: ignore[attr-defined]
        pieces = [torch.empty_like(x_L) for _ in range(group.size())]
        dist.all_gather(pieces, x_L.contiguous(), group=group)
        return torch.cat(pieces)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad_T: Tensor) -> tuple[Tensor, None]:
        group: ProcessGroup = ctx.group  # type: ignore[attr-defined]
        mine = grad_T.chunk(group.size())[group.rank()]
        return mine * group.size(), None
