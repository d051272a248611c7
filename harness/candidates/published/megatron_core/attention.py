"""Attention over all ranks of a sequence, in the place of Transformer Engine's.

Megatron-Core's own attention runs on one rank only. This one gathers keys and values, and compares
every pair of tokens to find whether one sees the other.

Legend: L tokens of this rank, K tokens of all ranks, B rows, N heads, C kv heads, H head dim.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from harness.candidates.protocol import Emit
from harness.candidates.published.wiring.decoder import eager
from harness.candidates.published.wiring.gradients import silent


class _Gather(torch.autograd.Function):
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
    """Return the tokens of all ranks, rank after rank; backward sums their gradients."""
    whole_BK: Tensor = _Gather.apply(local_BL, group)  # type: ignore[no-untyped-call]
    return whole_BK


class Current:
    """The tokens of this rank in the current micro-batch, and how to emit their tensors."""

    emit: Emit = staticmethod(silent)
    sequence_BL: Tensor
    position_BL: Tensor
    tokens: Tensor
    # Each micro-batch's losses, with the numbers of their tokens.
    losses: list[tuple[Tensor, Tensor]] = []  # noqa: RUF012 - emptied before each step


class Attention(nn.Module):
    """The `core_attention` in a layer's spec."""

    def __init__(self, pg_collection: Any, **_: Any) -> None:
        super().__init__()
        self.cp = pg_collection.cp
        # The case's name of its layer, if that is watched. Numbers of layers begin anew in a
        # further depth.
        self.name = ""

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
        if self.name:
            for key, x in (("q", q), ("k", k), ("v", v)):
                Current.emit(f"{self.name}.attn.{key}", x.flatten(0, 1), Current.tokens)
        k, v = gathered(torch.cat((k, v), 2), ranks).chunk(2, 2)
        sequences_and_positions = torch.stack((Current.sequence_BL, Current.position_BL), -1)
        sequence_BK, position_BK = gathered(sequences_and_positions, ranks).unbind(-1)
        seen_BLK = Current.sequence_BL[:, :, None] == sequence_BK[:, None]
        seen_BLK &= Current.position_BL[:, :, None] >= position_BK[:, None]
        out = eager(q, k, v, seen_BLK)
        if self.name:
            Current.emit(f"{self.name}.attn.out", out.flatten(0, 1), Current.tokens)
        return (out[0] if packed else out.transpose(0, 1)).flatten(-2)
