"""Emulated hardware that multiplies in TF32: fp32 with ten bits of its mantissa.

On some GPUs fused attention in fp32 takes three passes in TF32, with each number split into a high
and a low part. Three passes with two bits less are so inexact that it shows on every CPU. One pass
is what torch allows for matrix products on request. This emulates the arithmetic of a kernel in
forward and backward, but not the order of its sums.

Legend: ... any leading dims, B rows, S tokens of one row, T all tokens of the stream, N or M query
heads, K or C kv heads, H head dim.
"""

from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from harness.candidates import Emit, Rank
from harness.candidates.own.native import LocalDialect, kernels
from harness.candidates.own.native.attention import Segments
from harness.case import Case
from harness.reference import decoder


class Passes(NamedTuple):
    """How matrices are multiplied."""

    number: int
    # How many of the 23 bits of a mantissa are dropped.
    dropped: int


ONE, THREE, COARSE = Passes(1, 13), Passes(3, 13), Passes(3, 15)


def round_mantissa(x: Tensor, dropped: int) -> Tensor:
    """Round to the nearest number with fewer bits, ties away from zero."""
    half = 1 << dropped - 1
    return (x.contiguous().view(torch.int32) + half >> dropped << dropped).view(torch.float32)


def matmul(a: Tensor, b: Tensor, passes: Passes) -> Tensor:
    """Multiply matrices in one or three passes; sums are kept in fp32."""
    high_a, high_b = round_mantissa(a, passes.dropped), round_mantissa(b, passes.dropped)
    if passes.number == 1:
        return high_a @ high_b
    low_a, low_b = (
        round_mantissa(a - high_a, passes.dropped),
        round_mantissa(b - high_b, passes.dropped),
    )
    return low_a @ high_b + high_a @ low_b + high_a @ high_b


class Attention(torch.autograd.Function):
    """Softmax attention as in fused kernels, whose backward reuses the sums of forward."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, passes: Passes
    ) -> Tensor:
        scores = matmul(q, k.mT, passes) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(~allowed, float("-inf"))
        sums = scores.logsumexp(-1, keepdim=True)
        out = matmul((scores - sums).exp(), v, passes)
        ctx.save_for_backward(q, k, v, out, scores, sums)
        ctx.passes = passes  # type: ignore[attr-defined]
        return out

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, scores, sums = ctx.saved_tensors  # type: ignore[attr-defined]
        passes: Passes = ctx.passes  # type: ignore[attr-defined]
        weights = (scores - sums).exp()
        slope = matmul(grad, v.mT, passes) - (grad * out).sum(-1, keepdim=True)
        slope = weights * slope * q.shape[-1] ** -0.5
        return (
            matmul(slope, k, passes),
            matmul(slope.mT, q, passes),
            matmul(weights.mT, grad, passes),
            None,
            None,
        )


def attention(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, passes: Passes) -> Tensor:
    """Attend with q ...SNH to k and v ...SKH under a mask."""
    shared = q.shape[-2] // k.shape[-2]
    heads = (x.transpose(-2, -3) for x in (q, *(x.repeat_interleave(shared, -2) for x in (k, v))))
    out: Tensor = Attention.apply(*heads, allowed, passes)  # type: ignore[no-untyped-call]
    return out.transpose(-2, -3)


def fused(q_BSNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, allowed_BSS: Tensor) -> Tensor:
    """Stand in for the fused attention of plain training on such hardware."""
    return attention(q_BSNH, k_BSKH, v_BSKH, allowed_BSS[:, None], THREE)


def coarse(q_BSNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, allowed_BSS: Tensor) -> Tensor:
    """Do as `fused`, with two bits less."""
    return attention(q_BSNH, k_BSKH, v_BSKH, allowed_BSS[:, None], COARSE)


class Multiply(torch.autograd.Function):
    """x @ weight.T in one pass, and its gradients."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return matmul(x, weight.mT, ONE)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        return matmul(grad, weight, ONE), matmul(grad.mT, x, ONE)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Project in one pass, as where torch may use TF32 for matrix products."""
    out: Tensor = Multiply.apply(x, weight)  # type: ignore[no-untyped-call]
    return out if bias is None else out + bias


class Attends(LocalDialect):
    """The native step with emulated attention in place of any kernel."""

    def __init__(self, passes: Passes) -> None:
        self.name, self.passes = f"attends-in-{passes.number}-less-{passes.dropped}", passes

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        def kernel(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
            return attention(q_TMH, k_TCH, v_TCH, segments.allowed_TT, self.passes)

        with patch.dict(kernels.KERNELS, {case.kernel: kernel}):
            super().run(case, rank, emit)


class Multiplies(LocalDialect):
    """The native step with projections in TF32."""

    name = "multiplies"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        with patch.object(decoder, "linear", linear):
            super().run(case, rank, emit)


IN_THREE, IN_ONE, MULTIPLIES = Attends(THREE), Attends(ONE), Multiplies()
IN_COARSE = Attends(COARSE)
