"""Attention over all ranks of a sequence, in the place of Transformer Engine's.

Megatron-Core's own asserts that there is one rank. This one gathers keys and values and asks of
every pair of tokens whether one sees the other.

Legend: L this rank's tokens, K those of all ranks, B rows, N heads, C kv heads, H head dim.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from harness.candidates.protocol import Emit
from harness.candidates.published.wiring.decoder import eager
from harness.candidates.published.wiring.gradients import silent


class Gather(torch.autograd.Function):
    """All ranks' tokens, rank after rank; the gradient of this rank's tokens comes back summed."""

    @staticmethod
    def forward(ctx: Any, local_BL: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        if group is None:
            return local_BL
        parts = [torch.empty_like(local_BL) for _ in range(group.size())]
        dist.all_gather(parts, local_BL.contiguous(), group=group)
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        if ctx.group is None:
            return grads[0], None
        grad_BK = grads[0].contiguous()
        dist.all_reduce(grad_BK, group=ctx.group)
        return grad_BK.chunk(ctx.group.size(), 1)[ctx.group.rank()], None


def gathered(local_BL: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    whole_BK: Tensor = Gather.apply(local_BL, group)  # type: ignore[no-untyped-call]
    return whole_BK


class Seat:
    """Which tokens this rank has: in what sequence, where in it, and what is emitted of them."""

    emit: Emit = staticmethod(silent)
    # A layer's name in the case, by its number in the library.
    names: dict[int, str] = {}  # noqa: RUF012 - of the one model that a rank has
    sequence_BL: Tensor
    place_BL: Tensor
    numbers: Tensor
    # Each micro-batch's losses, with the numbers of their tokens.
    losses: list[tuple[Tensor, Tensor]] = []  # noqa: RUF012 - emptied before each step


class Attention(nn.Module):
    """The `core_attention` of a layer's spec."""

    def __init__(self, layer_number: int, pg_collection: Any, **_: Any) -> None:
        super().__init__()
        self.layer, self.cp = layer_number, pg_collection.cp

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *_: Any, packed_seq_params: Any, **__: Any
    ) -> Tensor:
        # As in Transformer Engine, a row may have ranks of its own.
        ranks = self.cp
        if packed_seq_params is not None and packed_seq_params.local_cp_size is not None:
            ranks = packed_seq_params.cp_group
        # [L, B, N, H], or [L, N, H] for a pack.
        packed = q.dim() == 3
        q, k, v = (x[None] if packed else x.transpose(0, 1) for x in (q, k, v))
        name = Seat.names.get(self.layer)
        if name:
            for key, x in (("q", q), ("k", k), ("v", v)):
                Seat.emit(f"{name}.attn.{key}", x.flatten(0, 1), Seat.numbers)
        k, v = gathered(torch.cat((k, v), 2), ranks).chunk(2, 2)
        where = torch.stack((Seat.sequence_BL, Seat.place_BL), -1)
        sequence_BK, place_BK = gathered(where, ranks).unbind(-1)
        seen_BLK = Seat.sequence_BL[:, :, None] == sequence_BK[:, None]
        seen_BLK &= Seat.place_BL[:, :, None] >= place_BK[:, None]
        out = eager(q, k, v, seen_BLK)
        if name:
            Seat.emit(f"{name}.attn.out", out.flatten(0, 1), Seat.numbers)
        return (out[0] if packed else out.transpose(0, 1)).flatten(-2)
