"""A stand-in for flash-attn 2 in plain torch, for ranks without a GPU.

It is called like release 2.8.3. It refuses what the release refuses, and also dropout, softcap,
alibi and block tables. It fills parts of outputs and gradients with NaN if the release would leave
them unwritten.

Legend: ... batch or nothing, T tokens of a stream, Q queries, K keys, M query heads, C kv heads,
        H head dim.
"""

import importlib.machinery
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, autocast
from torch.autograd.function import FunctionCtx, once_differentiable

from harness.candidates.protocol import STOOD_IN
from harness.candidates.published.flash_stand_in.padding import padding_functions
from harness.candidates.published.flash_stand_in.refusals import check, cuts, refuse, require
from harness.candidates.published.flash_stand_in.transformers import pretend_installed
from harness.reference.decoder import at_least_fp32

__all__ = [
    "attention",
    "calls",
    "check",
    "counted",
    "cuts",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "give_to_transformers",
    "install",
    "must_have_run",
    "reach",
    "refuse",
    "require",
    "unseen",
]

P = ParamSpec("P")
R = TypeVar("R")

VERSION = "2.8.3"
MODULES = ("flash_attn", "flash_attn.flash_attn_interface", "flash_attn.bert_padding")

# How often each function was called since the last `must_have_run`.
calls: Counter[str] = Counter()


def counted(function: Callable[P, R]) -> Callable[P, R]:
    """Count every call by the name of the function."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        calls[function.__name__] += 1
        return function(*args, **kwargs)

    return call


def must_have_run(*names: str) -> None:
    """Raise unless one of these functions, or any, was called since the last `must_have_run`."""
    ran, wanted = sorted(calls), set(names or calls)
    calls.clear()
    if not wanted & set(ran):
        raise RuntimeError(
            f"flash-attn: {' or '.join(names) or 'nothing'} was called, only {', '.join(ran)}"
            if ran
            else "flash-attn: no function of it was called, so something else did the attention"
        )


@counted
def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,  # noqa: ARG001 - here it always is
    return_attn_probs: bool = False,
) -> Any:
    """Attend in rows of one length: q is batch x Q x M x H, k and v are batch x K x C x H."""
    refuse(dropout_p=dropout_p, softcap=softcap, alibi_slopes=alibi_slopes)
    check(q, k, v, dims=4)
    require(k.shape[:2] == v.shape[:2] and len(q) == len(k) > 0, "batches of q, k and v differ")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    behind, ahead = reach(window_size, causal)
    out, lse = attention(q, k, v, scale, behind, ahead)
    return (out, lse, q.new_empty(0)) if return_attn_probs else out


@counted
def flash_attn_varlen_func(
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
    deterministic: bool = False,  # noqa: ARG001 - here it always is
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """Attend in rows end to end: q is T x M x H, k and v T x C x H, cut at cumulative lengths."""
    refuse(
        dropout_p=dropout_p, softcap=softcap, alibi_slopes=alibi_slopes, block_table=block_table
    )
    check(q, k, v, dims=3)
    require(len(k) == len(v), "k and v have different lengths")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    behind, ahead = reach(window_size, causal)
    rows = [
        (slice(*of_q), slice(*of_k))
        for of_q, of_k in zip(cuts(cu_seqlens_q, len(q)), cuts(cu_seqlens_k, len(k)), strict=True)
        # A kernel never visits blocks behind the maximum, so longer rows are left out.
        if of_q[1] - of_q[0] <= int(max_seqlen_q) and of_k[1] - of_k[0] <= int(max_seqlen_k)
    ]
    unwritten: Callable[[Tensor, Tensor], Tensor] = Unwritten.apply
    q = unwritten(q, written(len(q), [row for row, _ in rows]))
    k, v = (unwritten(x, written(len(x), [row for _, row in rows])) for x in (k, v))
    out = torch.full_like(q, torch.nan)
    lse_MT = torch.full((q.shape[1], len(q)), torch.nan)
    for of_q, of_k in rows:
        out[of_q], lse_MT[:, of_q] = attention(q[of_q], k[of_k], v[of_k], scale, behind, ahead)
    return (out, lse_MT, q.new_empty(0)) if return_attn_probs else out


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Raise: the name exists only to be imported, since training generates nothing."""
    raise NotImplementedError("flash-attn: flash_attn_with_kvcache is not stood in for")


def attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, behind: int, ahead: int
) -> tuple[Tensor, Tensor]:
    """Return output ...QMH and the fp32 log of the sum of exponentials ...MQ.

    The last query stands at the last key. A query that sees no key has zeros and an infinite log.
    """
    sharing = q.shape[-2] // k.shape[-2]
    # A kernel ignores the caller's autocast.
    with autocast("cpu", enabled=False):
        wide_q, wide_k, wide_v = (at_least_fp32(x) for x in (q, k, v))
        wide_k, wide_v = (x.repeat_interleave(sharing, -2) for x in (wide_k, wide_v))
        scores = torch.einsum("...qmh,...kmh->...mqk", wide_q, wide_k) * scale
        queries, keys = scores.shape[-2:]
        unseen_QK = unseen(queries, keys, behind, ahead)
        blind_Q1 = unseen_QK.all(-1, keepdim=True)
        # A softmax over nothing would be NaN, and so would its gradient.
        scores = scores.masked_fill(unseen_QK & ~blind_Q1, -torch.inf)
        weights = scores.softmax(-1).masked_fill(blind_Q1, 0)
        out = torch.einsum("...mqk,...kmh->...qmh", weights, wide_v)
        lse = scores.detach().logsumexp(-1).masked_fill(blind_Q1[:, 0], torch.inf)
    return out.to(q.dtype), lse.float()


def unseen(queries: int, keys: int, behind: int, ahead: int) -> Tensor:
    """Return which keys each query does not attend to; the last query stands at the last key."""
    away_QK = torch.arange(keys) - torch.arange(keys - queries, keys)[:, None]
    unseen_QK = torch.zeros_like(away_QK, dtype=torch.bool)
    if behind >= 0:
        unseen_QK |= away_QK < -behind
    if ahead >= 0:
        unseen_QK |= away_QK > ahead
    return unseen_QK


class Unwritten(torch.autograd.Function):
    """The identity, whose gradient is NaN where the backward kernel would not write one."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, written_T: Tensor) -> Tensor:
        ctx.save_for_backward(written_T)
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (written_T,) = ctx.saved_tensors
        return gradient.masked_fill(~written_T[:, None, None], torch.nan), None


def written(length: int, rows: list[slice]) -> Tensor:
    """Return whether each token of a stream belongs to a row."""
    written_T = torch.zeros(length, dtype=torch.bool)
    for row in rows:
        written_T[row] = True
    return written_T


def reach(window_size: tuple[int, int], causal: bool) -> tuple[int, int]:
    """Return how far a query sees to the left and to the right; below zero, without end."""
    return window_size[0], 0 if causal else window_size[1]


def install() -> None:
    """Let `flash_attn` be imported; do nothing if the stand-in is installed already."""
    if torch.cuda.is_available():
        raise RuntimeError("flash-attn: there is a GPU here; use the true one, not the stand-in")
    if getattr(sys.modules.get("flash_attn"), "stand_in", False):
        return
    if "flash_attn" in sys.modules:
        raise RuntimeError("flash-attn: another one is imported already")
    for name in MODULES:
        module: Any = ModuleType(name)
        # Code that looks for the package before it imports it reads this spec.
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=name == MODULES[0])
        sys.modules[name] = module
    package, interface, padding = (sys.modules[name] for name in MODULES)
    STOOD_IN.add(MODULES[0])
    functions = {
        "flash_attn_func": flash_attn_func,
        "flash_attn_varlen_func": flash_attn_varlen_func,
        "flash_attn_with_kvcache": flash_attn_with_kvcache,
    }
    vars(interface).update(functions)
    vars(padding).update(padding_functions())
    vars(package).update(
        functions,
        stand_in=True,
        __version__=VERSION,
        __path__=[],
        flash_attn_interface=interface,
        bert_padding=padding,
    )


def give_to_transformers() -> None:
    """Let `attn_implementation="flash_attention_2"` call the stand-in, for the whole process.

    A model may get this attention when it is built, or afterwards.
    """
    install()
    pretend_installed(VERSION)
