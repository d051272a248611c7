"""Attention on a padded batch, at once or a block after the other.

Legend: B rows, S longest row, N heads, K kv heads, H head dim, Q queries of a block.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from harness.case import Case
from harness.reference.decoder import Attend, at_least_fp32

# kernel(q, k, v, allowed) -> out, where each query is allowed to see some of the keys.
Kernel = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

# Where there are more, they are computed so many at a time, and once more in backward: memory then
# grows with the tokens and not with their square.
SCORES_AT_ONCE = 1 << 22


def attending(kernel: Kernel, attended_BS: Tensor, case: Case) -> Attend:
    """The kernel on the padded batch."""
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
    """A few queries of one row after the other, each with all keys up to its own."""
    rows, columns = attended_BS.shape
    size = max(1, SCORES_AT_ONCE // (columns * q_BSNH.shape[2]))

    def block(row: int, first: int) -> Tensor:
        here, queries, keys = slice(row, row + 1), slice(first, first + size), slice(first + size)
        q_1QNH = q_BSNH[here, queries]
        attended_1S = attended_BS[here, keys]
        if not attended_1S[:, queries].any():
            # Only padding, which no real token sees.
            return torch.zeros_like(q_1QNH)

        def attend(q_1QNH: Tensor, k_1SKH: Tensor, v_1SKH: Tensor) -> Tensor:
            allowed_1QS = visible(attended_1S, window, queries)
            return kernel(q_1QNH, k_1SKH, v_1SKH, allowed_1QS)

        out_1QNH: Tensor = checkpoint(
            attend, q_1QNH, k_BSKH[here, keys], v_BSKH[here, keys], use_reentrant=False
        )
        return out_1QNH

    return torch.cat(
        [torch.cat([block(r, c) for c in range(0, columns, size)], 1) for r in range(rows)]
    )


def visible(attended_BS: Tensor, window: int | None, queries: slice = slice(None)) -> Tensor:
    """Which key (last dim) each query may see: earlier or itself, real, inside the window."""
    column_S = torch.arange(attended_BS.shape[1], device=attended_BS.device)
    distance_QS = column_S[queries, None] - column_S[None, :]
    causal_QS = distance_QS >= 0
    if window is not None:
        causal_QS = causal_QS & (distance_QS < window)
    # Padding sees itself: a softmax over nothing would be NaN, and NaN times zero is NaN.
    itself_QS = distance_QS == 0
    return causal_QS & attended_BS[:, None, :] | itself_QS


def attention(q_BSNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, allowed_BSS: Tensor) -> Tensor:
    """Softmax attention, written out."""
    group = q_BSNH.shape[2] // k_BSKH.shape[2]
    q_BNSH = q_BSNH.transpose(1, 2)
    k_BNSH = k_BSKH.transpose(1, 2).repeat_interleave(group, 1)
    v_BNSH = v_BSKH.transpose(1, 2).repeat_interleave(group, 1)
    scores_BNSS = q_BNSH @ k_BNSH.mT * q_BSNH.shape[-1] ** -0.5
    scores_BNSS = scores_BNSS.masked_fill(~allowed_BSS[:, None], float("-inf"))
    weights_BNSS = at_least_fp32(scores_BNSS).softmax(-1).to(q_BSNH.dtype)
    return (weights_BNSS @ v_BNSH).transpose(1, 2)


def fused(q_BSNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, allowed_BSS: Tensor) -> Tensor:
    """The same by PyTorch's fused kernel."""
    q_BNSH, k_BKSH, v_BKSH = (x.transpose(1, 2) for x in (q_BSNH, k_BSKH, v_BSKH))
    grouped = q_BNSH.shape[1] != k_BKSH.shape[1]
    out_BNSH = F.scaled_dot_product_attention(
        q_BNSH, k_BKSH, v_BKSH, attn_mask=allowed_BSS[:, None], enable_gqa=grouped
    )
    return out_BNSH.transpose(1, 2)
