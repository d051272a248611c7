"""The private functions of flash-attn 2.8.3 that rings call, in plain torch.

A ring calls the kernel block by block and merges the blocks by the log of their sums. So it needs
what the public functions hide: that log in fp32, infinite if a query sees nothing; a backward that
takes the log of the whole row; gradients written into the caller's buffers.

Legend: B batch, T tokens of a stream, Q queries, K keys, M query heads, C kv heads, H head dim.
"""

import sys
from collections.abc import Iterator

import torch
from torch import Tensor

from harness.candidates.published.flash_stand_in import flash
from harness.reference.decoder import at_least_fp32

INTERFACE = "flash_attn.flash_attn_interface"


def install() -> None:
    """Add these functions to the stand-in's modules, before a library imports from them."""
    flash.install()
    vars(sys.modules[INTERFACE]).update(
        _flash_attn_forward=_flash_attn_forward,
        _flash_attn_backward=_flash_attn_backward,
        _flash_attn_varlen_forward=_flash_attn_varlen_forward,
        _flash_attn_varlen_backward=_flash_attn_varlen_backward,
    )


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    return_softmax: bool,  # noqa: ARG001 - nothing is dropped
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return output BQMH, log of the sums BMQ, and two results that only dropout fills."""
    flash.calls["_flash_attn_forward"] += 1
    flash.refuse(dropout_p=dropout_p, softcap=softcap, alibi_slopes=alibi_slopes)
    flash.check(q, k, v, dims=4)
    behind, ahead = flash.reach((window_size_left, window_size_right), causal)
    out, lse_BMQ = flash.attention(q, k, v, softmax_scale, behind, ahead)
    return out, lse_BMQ, *_nothing(q)


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,  # noqa: ARG001 - it always is
    rng_state: Tensor | None = None,  # noqa: ARG001 - nothing is dropped
) -> Tensor:
    """Fill the given buffers -> the sum of each output times its gradient."""
    flash.calls["_flash_attn_backward"] += 1
    flash.refuse(dropout_p=dropout_p, softcap=softcap, alibi_slopes=alibi_slopes)
    flash.check(q, k, v, dims=4)
    behind, ahead = flash.reach((window_size_left, window_size_right), causal)
    unseen_QK = flash.unseen(q.shape[1], k.shape[1], behind, ahead)
    *gradients, delta_BMQ = _differentiate(
        dout, q, k, v, out, softmax_lse, softmax_scale, unseen_QK
    )
    for buffer, gradient in zip((dq, dk, dv), gradients, strict=True):
        if buffer is not None:
            buffer.copy_(gradient)
    return delta_BMQ.float()


def _flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,  # noqa: ARG001 - nothing is dropped
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    zero_tensors: bool = False,  # noqa: ARG001 - no effect in flash-attn
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attend in rows end to end -> output TMH, log of the sums MT; NaN if a kernel writes none."""
    flash.calls["_flash_attn_varlen_forward"] += 1
    flash.refuse(
        dropout_p=dropout_p,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        block_table=block_table,
        leftpad_k=leftpad_k,
        seqused_k=seqused_k,
    )
    flash.check(q, k, v, dims=3)
    behind, ahead = flash.reach((window_size_left, window_size_right), causal)
    out = torch.full_like(q, torch.nan)
    lse_MT = torch.full((q.shape[1], len(q)), torch.nan)
    for of_q, of_k in _rows(cu_seqlens_q, cu_seqlens_k, q, k, (max_seqlen_q, max_seqlen_k)):
        out[of_q], lse_MT[:, of_q] = flash.attention(
            q[of_q], k[of_k], v[of_k], softmax_scale, behind, ahead
        )
    return out, lse_MT, *_nothing(q)


def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,  # noqa: ARG001 - nothing is dropped
    zero_tensors: bool = False,  # noqa: ARG001 - no effect in flash-attn
) -> Tensor:
    """Fill the buffers row by row; a token outside all rows keeps its value in the buffers."""
    flash.calls["_flash_attn_varlen_backward"] += 1
    delta_MT = torch.full(softmax_lse.shape, torch.nan)
    for of_q, of_k in _rows(cu_seqlens_q, cu_seqlens_k, q, k, (max_seqlen_q, max_seqlen_k)):
        delta_MT[:, of_q] = _flash_attn_backward(
            *(dout[None, of_q], q[None, of_q], k[None, of_k], v[None, of_k]),
            *(out[None, of_q], softmax_lse[None, :, of_q]),
            None if dq is None else dq[None, of_q],
            None if dk is None else dk[None, of_k],
            None if dv is None else dv[None, of_k],
            dropout_p,
            softmax_scale,
            causal,
            window_size_left,
            window_size_right,
            softcap,
            alibi_slopes,
            deterministic,
        )[0]
    return delta_MT


def _differentiate(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse_BMQ: Tensor,
    scale: float,
    unseen_QK: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of queries, keys and values, and the sum of each output times its own."""
    sharing = q.shape[2] // k.shape[2]
    wide_q, wide_out, dout = (at_least_fp32(x) for x in (q, out, dout))
    wide_k, wide_v = (at_least_fp32(x).repeat_interleave(sharing, 2) for x in (k, v))
    scores_BMQK = torch.einsum("bqmh,bkmh->bmqk", wide_q, wide_k) * scale
    # A query that sees nothing has an infinite log, so all its weights are zero.
    weights_BMQK = (scores_BMQK - lse_BMQ[..., None]).exp().masked_fill(unseen_QK, 0)
    delta_BMQ = (dout * wide_out).sum(-1).transpose(1, 2)
    dweights_BMQK = torch.einsum("bqmh,bkmh->bmqk", dout, wide_v)
    dscores_BMQK = scale * weights_BMQK * (dweights_BMQK - delta_BMQ[..., None])
    dq = torch.einsum("bmqk,bkmh->bqmh", dscores_BMQK, wide_k)
    dk = torch.einsum("bmqk,bqmh->bkmh", dscores_BMQK, wide_q)
    dv = torch.einsum("bmqk,bqmh->bkmh", weights_BMQK, dout)
    dk, dv = (x.unflatten(2, (-1, sharing)).sum(3) for x in (dk, dv))
    return dq, dk, dv, delta_BMQ


def _rows(
    cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, q: Tensor, k: Tensor, longest: tuple[int, int]
) -> Iterator[tuple[slice, slice]]:
    """Yield queries and keys of each row that is not longer than `longest`."""
    of_q, of_k = flash.cuts(cu_seqlens_q, len(q)), flash.cuts(cu_seqlens_k, len(k))
    for (start_q, stop_q), (start_k, stop_k) in zip(of_q, of_k, strict=True):
        if stop_q - start_q <= longest[0] and stop_k - start_k <= longest[1]:
            yield slice(start_q, stop_q), slice(start_k, stop_k)


def _nothing(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return empty dropped weights and a random state of zeros, since nothing is dropped."""
    return q.new_empty(0), torch.zeros(2, dtype=torch.int64)
