"""Attention as nobody would train with it: each rank gathers all keys and values. For mends.

Legend: B rows, L tokens of this rank, K those of all ranks, N heads, H head dim.
"""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from harness.candidates.published.wiring.decoder import eager
from harness.candidates.published.wiring.gathering import all_gather


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
    row_K, place_K = (torch.cat(all_gather(x_L, group)) for x_L in where)
    back_LK = place_L[:, None] - place_K
    seen_LK = (row_L[:, None] == row_K) & (back_LK >= 0)
    if window >= 0:
        # As flash-attn has it: so many before the token itself.
        seen_LK &= back_LK <= window
    k_BKNH, v_BKNH = (torch.cat(all_gather(x, group), 1) for x in (k_BLNH, v_BLNH))
    return eager(q_BLNH, k_BKNH, v_BKNH, seen_LK.expand(len(q_BLNH), -1, -1))


def zigzag(length: int, group: ProcessGroup) -> Tensor:
    """The places in a row of a rank's tokens: a piece from the front, and one from the back."""
    half, index, pieces = length // 2, group.rank(), 2 * group.size()
    near = torch.arange(half)
    return torch.cat((index * half + near, (pieces - 1 - index) * half + near))
