"""Attention over the whole stream for this rank's heads.

Legend: L tokens on this rank, T all tokens of the padded stream, K kv heads, M query heads on this
rank, C kv heads on this rank, H head dim.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from harness.reference.decoder import at_least_fp32


@dataclass(frozen=True, slots=True)
class Segments:
    """Which rows the stream consists of; a row starts wherever the position is zero."""

    allowed_TT: Tensor

    @classmethod
    def of(cls, positions_T: Tensor, window: int | None) -> "Segments":
        row_T = (positions_T == 0).cumsum(0)
        distance_TT = positions_T[:, None] - positions_T[None, :]
        allowed_TT = (row_T[:, None] == row_T[None, :]) & (distance_TT >= 0)
        if window is not None:
            allowed_TT = allowed_TT & (distance_TT < window)
        return cls(allowed_TT)


def repeat_for(sp: int, x_LKH: Tensor) -> Tensor:
    """Every rank needs a kv head: repeat each in place until there are sp of them."""
    return x_LKH.repeat_interleave(max(1, sp // x_LKH.shape[1]), 1)


Kernel = Callable[[Tensor, Tensor, Tensor, Segments], Tensor]


def eager(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
    """Attention written out."""
    group_size = q_TMH.shape[1] // k_TCH.shape[1]
    q_MTH = q_TMH.transpose(0, 1)
    k_MTH, v_MTH = (x.transpose(0, 1).repeat_interleave(group_size, 0) for x in (k_TCH, v_TCH))
    scores_MTT = q_MTH @ k_MTH.mT * q_TMH.shape[-1] ** -0.5
    scores_MTT = scores_MTT.masked_fill(~segments.allowed_TT, float("-inf"))
    weights_MTT = at_least_fp32(scores_MTT).softmax(-1).to(q_TMH.dtype)
    return (weights_MTT @ v_MTH).transpose(0, 1)


def sdpa(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
    """PyTorch's fused attention under a mask."""
    q_MTH, k_CTH, v_CTH = (x.transpose(0, 1)[None] for x in (q_TMH, k_TCH, v_TCH))
    out_MTH = F.scaled_dot_product_attention(
        q_MTH,
        k_CTH,
        v_CTH,
        attn_mask=segments.allowed_TT,
        enable_gqa=q_TMH.shape[1] != k_TCH.shape[1],
    )
    return out_MTH[0].transpose(0, 1)


KERNELS: dict[str, Kernel] = {"eager": eager, "sdpa": sdpa}
