"""Attention as nobody would train with it: each rank gathers all keys and values. For mends.

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
        # As in flash-attn, the window counts tokens before the token itself.
        seen_LK &= back_LK <= window
    k_BKNH, v_BKNH = (torch.cat(all_gather(x, group), 1) for x in (k_BLNH, v_BLNH))
    return eager(q_BLNH, k_BKNH, v_BKNH, seen_LK.expand(len(q_BLNH), -1, -1))


def zigzag(length: int, group: ProcessGroup) -> Tensor:
    """The places in a row of a rank's tokens: a piece from the front, and one from the back."""
    half, index, pieces = length // 2, group.rank(), 2 * group.size()
    near = torch.arange(half)
    return torch.cat((index * half + near, (pieces - 1 - index) * half + near))


def attend_balanced(
    q_BNLH: Tensor, k_BNLH: Tensor, v_BNLH: Tensor, seen_BSS: Tensor, mesh: DeviceMesh
) -> Tensor:
    """Attention, BLNH, where torch's context parallelism has cut rows, and with any mask."""
    columns = held(seen_BSS.shape[-1], mesh.size())
    mine = columns.chunk(mesh.size())[mesh.get_local_rank()]
    k_BNKH, v_BNKH = (
        all_gather_tensor_autograd(x.contiguous(), 2, mesh) for x in (k_BNLH, v_BNLH)
    )
    q, k, v = (x.transpose(1, 2) for x in (q_BNLH, k_BNKH, v_BNKH))
    return eager(q, k, v, seen_BSS[:, mine][:, :, columns])


def held(length: int, ranks: int) -> Tensor:
    """Columns by rank: a piece from the front and one from the back, or one where that is odd."""
    if length % (2 * ranks):
        return torch.arange(length)
    pieces = torch.arange(length).chunk(2 * ranks)
    return torch.cat([torch.cat((pieces[r], pieces[-1 - r])) for r in range(ranks)])
