"""Attention for mends of rings: each rank gathers all keys and values.

Legend: B rows, L tokens of this rank, K tokens of all ranks, S those in the batch's order,
N heads, H head dim.
"""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed._functional_collectives import all_gather_tensor_autograd
from torch.distributed.device_mesh import DeviceMesh

from harness.candidates.published.wiring.decoder import eager
from harness.candidates.published.wiring.gathering import all_gather


def attend(
    q_BLNH: Tensor,
    k_BLNH: Tensor,
    v_BLNH: Tensor,
    rows_and_positions: tuple[Tensor, Tensor],
    window: int,
    group: ProcessGroup,
) -> Tensor:
    """Attend causally within rows; a window below 0 is none."""
    row_L, position_L = rows_and_positions
    row_K, position_K = (torch.cat(all_gather(x_L, group)) for x_L in rows_and_positions)
    back_LK = position_L[:, None] - position_K
    seen_LK = (row_L[:, None] == row_K) & (back_LK >= 0)
    if window >= 0:
        # As in flash-attn, the window counts tokens before the token itself.
        seen_LK &= back_LK <= window
    k_BKNH, v_BKNH = (torch.cat(all_gather(x, group), 1) for x in (k_BLNH, v_BLNH))
    return eager(q_BLNH, k_BKNH, v_BKNH, seen_LK.expand(len(q_BLNH), -1, -1))


def zigzag(length: int, group: ProcessGroup) -> Tensor:
    """Return the positions of a rank's tokens: a piece from the front, and one from the back."""
    half, index, pieces = length // 2, group.rank(), 2 * group.size()
    offsets = torch.arange(half)
    return torch.cat((index * half + offsets, (pieces - 1 - index) * half + offsets))


def attend_zigzag(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    window_size: tuple[int, int],
    group: ProcessGroup,
    **_: object,
) -> Tensor:
    """Attend as a zigzag ring is called, in one piece: distances are those in the row."""
    assert causal
    position_L = zigzag(q.shape[1], group)
    rows_and_positions = torch.zeros_like(position_L), position_L
    return attend(q, k, v, rows_and_positions, window_size[0], group)


def attend_balanced(
    q_BNLH: Tensor, k_BNLH: Tensor, v_BNLH: Tensor, seen_BSS: Tensor, mesh: DeviceMesh
) -> Tensor:
    """Attend, with any mask, where torch's context parallelism has cut rows -> BLNH."""
    columns = columns_by_rank(seen_BSS.shape[-1], mesh.size())
    own_columns = columns.chunk(mesh.size())[mesh.get_local_rank()]
    k_BNKH, v_BNKH = (
        all_gather_tensor_autograd(x.contiguous(), 2, mesh) for x in (k_BNLH, v_BNLH)
    )
    q, k, v = (x.transpose(1, 2) for x in (q_BNLH, k_BNKH, v_BNKH))
    return eager(q, k, v, seen_BSS[:, own_columns][:, :, columns])


def columns_by_rank(length: int, ranks: int) -> Tensor:
    """Return the columns of each rank: one piece from either end, or plain chunks if odd."""
    if length % (2 * ranks):
        return torch.arange(length)
    pieces = torch.arange(length).chunk(2 * ranks)
    return torch.cat([torch.cat((pieces[r], pieces[-1 - r])) for r in range(ranks)])
