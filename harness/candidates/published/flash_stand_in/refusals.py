"""Refuse what flash-attn 2 refuses, except for the lack of a GPU, and what the stand-in lacks."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

MAX_HEAD_DIM = 256


def cuts(cu_seqlens: Tensor, length: int) -> list[tuple[int, int]]:
    """Return where each row begins and ends."""
    require(cu_seqlens.dtype == torch.int32, f"cu_seqlens is {cu_seqlens.dtype}, not torch.int32")
    require(cu_seqlens.is_contiguous(), "cu_seqlens must be contiguous")
    require(cu_seqlens.ndim == 1 and len(cu_seqlens) > 1, "cu_seqlens needs one row at least")
    ends: list[int] = cu_seqlens.tolist()
    # flash-attn would read memory beyond the tokens.
    require(max(ends) <= length, f"cu_seqlens ends at {max(ends)} and there are {length} tokens")
    return list(pairwise(ends))


def check(q: Tensor, k: Tensor, v: Tensor, *, dims: int) -> None:
    """Check what flash-attn checks, except for the GPU."""
    for x in (q, k, v):
        require(x.device.type == "cpu", f"the stand-in got a tensor on {x.device}")
        require(x.ndim == dims, f"{tuple(x.shape)} has not {dims} dimensions")
        require(x.dtype == q.dtype, "query, key and value must have the same dtype")
        require(x.shape[-1] == q.shape[-1], "query, key and value must have the same head dim")
    require(q.shape[-1] <= MAX_HEAD_DIM, "only supports head dimension at most 256")
    require(k.shape[-2] == v.shape[-2], "key and value must have the same heads")
    require(q.shape[-2] % k.shape[-2] == 0, "heads in key/value must divide heads in query")


def require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise RuntimeError(f"flash-attn: {otherwise}")


def refuse(**unsupported: Any) -> None:
    """Refuse arguments that flash-attn supports and the stand-in does not."""
    for name, value in unsupported.items():
        if value is not None and value != 0.0:
            raise NotImplementedError(f"flash-attn: {name}={value} is not stood in for")
