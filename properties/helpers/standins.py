"""Stand-ins, which run anywhere, for the kernels for packed rows that need a GPU.

They have the signatures of the real kernels, refuse what those refuse, and record their arguments.
They compute attention without `Segments`, and leave NaN where a real kernel would write nothing.

Legend: T all tokens of the stream, S tokens of one row, M query heads, C kv heads, H head dim.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from harness.candidates import Emit, Rank
from harness.candidates.own.native import LocalDialect, kernels
from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.ulysses import Shard
from harness.case import Case, Kernel

StandIn = Callable[..., Tensor]

# The arguments of each call, by name.
calls: list[dict[str, Any]] = []


def varlen_attn(  # as of torch 2.13
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: object = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    calls.append(locals())
    assert (return_aux, seqused_k, block_table, num_splits) == (None,) * 4
    assert cu_seq_k is cu_seq_q, "the keys are those of the queries"
    assert max_k == max_q
    assert enable_gqa or query.shape == key.shape
    assert query.shape[-1] % 8 == 0
    return packed(query, key, value, cu_seq_q, max_q, scale, window_size)


def varlen_attn_of_2_11(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    return_aux: object = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    return varlen_attn(
        query,
        key,
        value,
        cu_seq_q,
        cu_seq_k,
        max_q,
        max_k,
        return_aux=return_aux,
        scale=scale,
        window_size=window_size,
    )


def flash_attn_varlen_func(  # as of flash-attn 2.8
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    calls.append(locals())
    assert not any((dropout_p, softcap, alibi_slopes, return_attn_probs, block_table))
    assert deterministic, "the gradient of queries is added up in any order"
    assert cu_seqlens_k is cu_seqlens_q, "the keys are those of the queries"
    assert max_seqlen_k == max_seqlen_q
    return packed(
        q,
        k,
        v,
        cu_seqlens_q,
        max_seqlen_q,
        softmax_scale,
        (window_size[0], 0 if causal else window_size[1]),
    )


def packed(
    q_TMH: Tensor,
    k_TCH: Tensor,
    v_TCH: Tensor,
    cu_seqlens: Tensor,
    longest: int,
    scale: float | None,
    window_size: tuple[int, int],
) -> Tensor:
    """Attend row by row and head by head, to the tokens that the window reaches."""
    assert all(x.is_contiguous() for x in (q_TMH, k_TCH, v_TCH))
    assert cu_seqlens.dtype == torch.int32
    assert type(longest) is int
    assert scale is not None
    sharing = q_TMH.shape[1] // k_TCH.shape[1]
    behind, before = (torch.inf if size < 0 else size for size in window_size)
    out_TMH = torch.full_like(q_TMH, torch.nan)
    for start, stop in pairwise(cu_seqlens.tolist()):
        row = slice(start, min(stop, start + longest))
        at_S = torch.arange(row.stop - row.start, device=q_TMH.device)
        ahead_SS = at_S - at_S[:, None]
        unseen_SS = (ahead_SS > before) | (ahead_SS < -behind)
        for m in range(q_TMH.shape[1]):
            k_SH, v_SH = k_TCH[row, m // sharing], v_TCH[row, m // sharing]
            scores_SS = (q_TMH[row, m] @ k_SH.T * scale).masked_fill(unseen_SS, -torch.inf)
            wide_SS = scores_SS if scores_SS.dtype == torch.float64 else scores_SS.float()
            out_TMH[row, m] = wide_SS.softmax(-1).to(v_SH.dtype) @ v_SH
    return out_TMH


# The module from which each kernel is imported, and its name there.
PACKAGES = {"flash_attn": "flash_attn_varlen_func", "torch.nn.attention.varlen": "varlen_attn"}
# For each stand-in: the kernel that a case names, and the function that replaces it.
STANDINS: dict[str, tuple[Kernel, StandIn]] = {
    "varlen": ("varlen", varlen_attn),
    "varlen-2.11": ("varlen", varlen_attn_of_2_11),
    "flash": ("flash", flash_attn_varlen_func),
}


@contextmanager
def installed(function: StandIn) -> Iterator[None]:
    """Make the native step call this function as its kernel, on any device."""
    originals = {package: sys.modules.pop(package, None) for package in PACKAGES}
    for package, name in PACKAGES.items():
        sys.modules[package] = ModuleType(package)
        vars(sys.modules[package])[name] = function
    try:
        with patch.object(kernels, "check_rows_on_cuda"):
            yield
    finally:
        for package, module in originals.items():
            del sys.modules[package]
            sys.modules |= {package: module} if module else {}


class WithStandIn(LocalDialect):
    """The native step with a stand-in for its kernel."""

    def __init__(self, function: StandIn) -> None:
        self.name = function.__name__
        self.function = function

    def supports(self, case: Case) -> None:
        """Support every case, whatever the dtype and the device."""

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        with installed(self.function):
            super().run(case, rank, emit)
        calls.clear()


class OfOneRow(WithStandIn):
    """The kernel gets the boundaries of a single row as long as the stream."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        return Segments.from_positions(torch.ones_like(shard.positions_TP), case.window)


class OneLate(WithStandIn):
    """The kernel gets boundaries that begin each row but the first one token too late."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        return Segments.from_positions(shard.positions_TP - 1, case.window)


VARLEN = WithStandIn(varlen_attn)
VARLEN_2_11 = WithStandIn(varlen_attn_of_2_11)
FLASH = WithStandIn(flash_attn_varlen_func)
VARLEN_OF_ONE_ROW = OfOneRow(varlen_attn)
FLASH_LATE = OneLate(flash_attn_varlen_func)
