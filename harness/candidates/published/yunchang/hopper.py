"""A stand-in for FlashAttention-3, which has no release, with only what yunchang calls."""

import sys
from types import ModuleType
from typing import Any

from torch import Tensor

from harness.candidates.published.flash_stand_in import blocks, flash

NAME = "flash_attn_interface"


def install() -> None:
    """Put the stand-in in place, before the library looks for it."""
    module: Any = ModuleType(NAME)
    vars(module).update(
        _flash_attn_forward=_flash_attn_forward,
        _flash_attn_backward=_flash_attn_backward,
        flash_attn_func=flash_attn_func,
    )
    sys.modules[NAME] = module


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    **others: Any,
) -> tuple[Tensor, ...]:
    """Return output and log of the sums; all other arguments must be their defaults."""
    _refuse(others)
    return blocks._flash_attn_forward(
        *(q, k, v, 0.0, softmax_scale, causal, *window_size, 0.0, None), return_softmax=False
    )


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    *,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    **others: Any,
) -> None:
    """Fill the buffers of gradients."""
    _refuse(others)
    blocks._flash_attn_backward(
        *(dout, q, k, v, out, softmax_lse, dq, dk, dv),
        *(0.0, softmax_scale, causal, *window_size, 0.0, None),
        deterministic=False,
    )


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool
) -> Tensor:
    out: Tensor = flash.flash_attn_func(q, k, v, softmax_scale=softmax_scale, causal=causal)
    return out


def _refuse(others: dict[str, Any]) -> None:
    """Refuse values other than defaults, which are false; `rotary_interleaved` has no effect."""
    requested = {name for name, value in others.items() if value}
    if requested - {"rotary_interleaved"}:
        raise NotImplementedError(f"flash_attn_interface: {sorted(requested)} is not stood in for")
