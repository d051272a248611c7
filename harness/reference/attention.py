"""Attention on a padded batch, computed at once or block by block.

Legend of tensor names: B rows, S columns (the longest row), N heads, K kv heads, H head dim,
Q queries of a block.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F

from harness.case import Case
from harness.reference.decoder import Attend, at_least_fp32

# kernel(q, k, v, allowed) -> out; `allowed` says which keys each query may see.
Kernel = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

# More scores than these are computed in blocks of this size. So memory grows with the number of
# tokens, and not with its square.
SCORES_AT_ONCE = 1 << 22


def make_attend(kernel: Kernel, attended_BS: Tensor, case: Case) -> Attend:
    """Return the function that attends on this padded batch with this kernel."""
    if case.heads * attended_BS.numel() * attended_BS.shape[1] > SCORES_AT_ONCE:
        return partial(attend_in_blocks, kernel, attended_BS, case.window)
    allowed_BSS = visible(attended_BS, case.window)
    return lambda q, k, v: kernel(q, k, v, allowed_BSS)


def attend_in_blocks(
    kernel: Kernel,
    attended_BS: Tensor,
    window: int | None,
    q_BSNH: Tensor,
    k_BSKH: Tensor,
    v_BSKH: Tensor,
) -> Tensor:
    """Return attention, computed for a few queries of one row at a time."""

    def attend(block: Block, q_1QNH: Tensor, k_1SKH: Tensor, v_1SKH: Tensor) -> Tensor:
        allowed_1QS = visible(attended_BS[block.keys], window, block.queries[1])
        return kernel(q_1QNH, k_1SKH, v_1SKH, allowed_1QS)

    rows, columns = attended_BS.shape
    size = max(1, SCORES_AT_ONCE // (columns * q_BSNH.shape[2]))
    blocks = [
        Block((row, slice(first, first + size)), (row, slice(first + size)))
        for row in (slice(r, r + 1) for r in range(rows))
        for first in range(0, columns, size)
    ]
    # The output of padding is never used.
    real = [block for block in blocks if attended_BS[block.queries].any()]
    out_BSNH: Tensor = _AttentionInBlocks.apply(attend, real, q_BSNH, k_BSKH, v_BSKH)  # type: ignore[no-untyped-call]
    return out_BSNH


class Block(NamedTuple):
    """Indices (row, columns) of the queries of one block, and of all keys that they may see."""

    queries: tuple[slice, slice]
    keys: tuple[slice, slice]


class _AttentionInBlocks(torch.autograd.Function):
    """Attention block by block, with zeros outside all blocks; backward computes it again.

    Checkpointing would do the same with more memory: the small tensors that it keeps for each
    block lie between large temporary ones, whose memory the process then cannot give back.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        attend: Callable[..., Tensor],
        blocks: list[Block],
        q_BSNH: Tensor,
        k_BSKH: Tensor,
        v_BSKH: Tensor,
    ) -> Tensor:
        ctx.attend, ctx.blocks = attend, blocks  # type: ignore[attr-defined]
        ctx.save_for_backward(q_BSNH, k_BSKH, v_BSKH)
        out_BSNH = torch.zeros_like(q_BSNH)
        for block in blocks:
            parts = q_BSNH[block.queries], k_BSKH[block.keys], v_BSKH[block.keys]
            out_BSNH[block.queries] = attend(block, *parts)
        return out_BSNH

    @staticmethod
    def backward(ctx: FunctionCtx, grad_BSNH: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors  # type: ignore[attr-defined]
        grads = [torch.zeros_like(x) for x in inputs]
        for block in ctx.blocks:  # type: ignore[attr-defined]
            places = block.queries, block.keys, block.keys
            pairs = zip(inputs, places, strict=True)
            parts = [x[place].detach().requires_grad_() for x, place in pairs]
            with torch.enable_grad():
                out_1QNH = ctx.attend(block, *parts)  # type: ignore[attr-defined]
            grads_of_block = torch.autograd.grad(out_1QNH, parts, grad_BSNH[block.queries])
            for grad, place, part in zip(grads, places, grads_of_block, strict=True):
                grad[place] += part
        return None, None, *grads


def visible(attended_BS: Tensor, window: int | None, queries: slice = slice(None)) -> Tensor:
    """Return which keys (last dim) each query may see: real ones, not later, in the window."""
    column_S = torch.arange(attended_BS.shape[1], device=attended_BS.device)
    distance_QS = column_S[queries, None] - column_S[None, :]
    causal_QS = distance_QS >= 0
    if window is not None:
        causal_QS = causal_QS & (distance_QS < window)
    # Padding sees itself, because a softmax over nothing is NaN, and so is NaN times zero.
    itself_QS = distance_QS == 0
    return causal_QS & attended_BS[:, None, :] | itself_QS


def attention(q_BSNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, allowed_BSS: Tensor) -> Tensor:
    """Return softmax attention, computed by the formula."""
    group = q_BSNH.shape[2] // k_BSKH.shape[2]
    q_BNSH = q_BSNH.transpose(1, 2)
    k_BNSH = k_BSKH.transpose(1, 2).repeat_interleave(group, 1)
    v_BNSH = v_BSKH.transpose(1, 2).repeat_interleave(group, 1)
    scores_BNSS = q_BNSH @ k_BNSH.mT * q_BSNH.shape[-1] ** -0.5
    scores_BNSS = scores_BNSS.masked_fill(~allowed_BSS[:, None], float("-inf"))
    weights_BNSS = at_least_fp32(scores_BNSS).softmax(-1).to(q_BSNH.dtype)
    return (weights_BNSS @ v_BNSH).transpose(1, 2)


def fused(q_BSNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, allowed_BSS: Tensor) -> Tensor:
    """Return softmax attention, computed by PyTorch's fused kernel."""
    q_BNSH, k_BKSH, v_BKSH = (x.transpose(1, 2) for x in (q_BSNH, k_BSKH, v_BSKH))
    grouped = q_BNSH.shape[1] != k_BKSH.shape[1]
    out_BNSH = F.scaled_dot_product_attention(
        q_BNSH, k_BKSH, v_BKSH, attn_mask=allowed_BSS[:, None], enable_gqa=grouped
    )
    return out_BNSH.transpose(1, 2)
