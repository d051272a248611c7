"""Four attention kernels, which attend to the whole stream with this rank's heads.

They must agree. `varlen` and `flash` run on CUDA in half precision only; see `usable`.

Legend: T all tokens of the padded stream, S tokens of one row, M query heads on this rank, C kv
heads on this rank, H head dim.
"""

from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.own.native.attention import Kernel, Segments
from harness.reference.decoder import at_least_fp32


def eager(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
    """Attend by matrix products and softmax, written out."""
    k_TMH, v_TMH = (repeat_for_queries(x_TCH, q_TMH) for x_TCH in (k_TCH, v_TCH))
    q_MTH, k_MTH, v_MTH = (x_TMH.transpose(0, 1) for x_TMH in (q_TMH, k_TMH, v_TMH))
    scores_MTT = q_MTH @ k_MTH.mT * q_TMH.shape[-1] ** -0.5
    scores_MTT = scores_MTT.masked_fill(~segments.allowed_TT, float("-inf"))
    weights_MTT = at_least_fp32(scores_MTT).softmax(-1).to(q_TMH.dtype)
    return (weights_MTT @ v_MTH).transpose(0, 1)


def sdpa(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
    """Attend by PyTorch's fused attention, row by row."""
    if segments.mask_TT is not None:
        return fused_attention(q_TMH, k_TCH, v_TCH, segments.mask_TT)
    rows = zip(*(x.split(segments.lengths) for x in (q_TMH, k_TCH, v_TCH)), strict=True)
    outs = []
    for q_SMH, k_SCH, v_SCH in rows:
        # Without a mask, memory grows with the length of the row, not with its square.
        whole = segments.window is None or segments.window >= len(q_SMH)
        allowed_SS = None if whole else segments.allowed_in_row(len(q_SMH))
        outs.append(fused_attention(q_SMH, k_SCH, v_SCH, allowed_SS))
    return torch.cat(outs)


def fused_attention(
    q_SMH: Tensor, k_SCH: Tensor, v_SCH: Tensor, allowed_SS: Tensor | None
) -> Tensor:
    """Attend under a mask, or causally if there is none."""
    q_MSH, k_CSH, v_CSH = (x.transpose(0, 1)[None] for x in (q_SMH, k_SCH, v_SCH))
    out_MSH = F.scaled_dot_product_attention(
        q_MSH,
        k_CSH,
        v_CSH,
        attn_mask=allowed_SS,
        is_causal=allowed_SS is None,
        enable_gqa=q_SMH.shape[1] != k_SCH.shape[1],
    )
    return out_MSH[0].transpose(0, 1)


def varlen(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
    """Attend by PyTorch's kernel for rows end to end."""
    check_rows_on_cuda("varlen", q_TMH, segments)
    from torch.nn.attention.varlen import varlen_attn

    options: dict[str, Any] = {"enable_gqa": True}
    if "enable_gqa" not in signature(varlen_attn).parameters:
        # In torch 2.11 queries cannot share kv heads.
        options = {}
        k_TCH, v_TCH = repeat_for_queries(k_TCH, q_TMH), repeat_for_queries(v_TCH, q_TMH)
    head_dim = q_TMH.shape[-1]
    # The head dim must be a multiple of 8; zeros added at its end change no score.
    q_TMH, k_TCH, v_TCH = (
        F.pad(x, (0, -head_dim % 8)).contiguous() for x in (q_TMH, k_TCH, v_TCH)
    )
    out_TMH = varlen_attn(
        q_TMH,
        k_TCH,
        v_TCH,
        cu_seq_q=segments.cu_seqlens,
        cu_seq_k=segments.cu_seqlens,
        max_q=max(segments.lengths),
        max_k=max(segments.lengths),
        scale=head_dim**-0.5,
        window_size=segments.window_size,
        **options,
    )
    assert isinstance(out_TMH, Tensor), "nothing was asked for besides"
    return out_TMH[..., :head_dim]


def flash(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
    """Attend by the package flash-attn."""
    check_rows_on_cuda("flash", q_TMH, segments)
    from flash_attn import flash_attn_varlen_func

    out_TMH: Tensor = flash_attn_varlen_func(
        q_TMH.contiguous(),
        k_TCH.contiguous(),
        v_TCH.contiguous(),
        cu_seqlens_q=segments.cu_seqlens,
        cu_seqlens_k=segments.cu_seqlens,
        max_seqlen_q=max(segments.lengths),
        max_seqlen_k=max(segments.lengths),
        softmax_scale=q_TMH.shape[-1] ** -0.5,
        causal=True,
        window_size=segments.window_size,
        deterministic=True,
    )
    return out_TMH


def check_rows_on_cuda(kernel: str, q_TMH: Tensor, segments: Segments) -> None:
    """Raise unless a packed kernel can take this input, which only a running rank can know."""
    if segments.mask_TT is not None:
        raise ValueError(f"kernel={kernel}: takes rows and no mask; use kernel=eager or sdpa")
    if q_TMH.device.type != "cuda":
        raise ValueError(
            f"kernel={kernel}: runs on CUDA, and this rank is on device={q_TMH.device}; "
            "use --device cuda, or kernel=eager or sdpa"
        )


def repeat_for_queries(x_TCH: Tensor, q_TMH: Tensor) -> Tensor:
    """Repeat each kv head for every query head that shares it."""
    return x_TCH.repeat_interleave(q_TMH.shape[1] // x_TCH.shape[1], 1)


KERNELS: dict[str, Kernel] = {"eager": eager, "sdpa": sdpa, "varlen": varlen, "flash": flash}
