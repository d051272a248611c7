"""Bugs in what ranks exchange around attention, and in what comes back.

Legend: B rows, N heads, L columns of this rank, S columns, H head dim.
"""

from typing import Any

import torch
from torch import Tensor

from harness.candidates.bank import mutant
from harness.candidates.own.shares.step import Supervised
from harness.recipes import ulysses


@mutant("B198", "pytorch/torchtitan#3206", needs=("sp>1",), named="head-order")
class KeysJoinedAsHeads(Supervised):
    """Keys and values of peers are joined along heads, and then viewed as if along columns."""

    def attention(
        self, layer: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **named: Any
    ) -> Any:
        copies = q.shape[1] // k.shape[1]
        k, v = (self.rejoined(x.repeat_interleave(copies, 1)) for x in (k, v))
        return super().attention(layer, q, k, v, *rest, **named)

    def rejoined(self, x_BNLH: Tensor) -> Tensor:
        """Return what the exchange brings into the order that it should not have."""
        joined_BNLH = ulysses.exchanged(x_BNLH, 1, 1, self.sp)
        rows, heads, _, dim = joined_BNLH.shape
        viewed = joined_BNLH.reshape(rows, heads // self.sp.size(), -1, dim)
        return ulysses.exchanged(viewed, 2, 1, self.sp)


class _FlatBackward(torch.autograd.Function):
    """The identity; gradients come back as if columns came before heads."""

    @staticmethod
    def forward(_ctx: Any, x_BNLH: Tensor) -> Tensor:
        return x_BNLH.clone()

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].transpose(1, 2).reshape(grads[0].shape)


@mutant("B200", "NVIDIA/TransformerEngine#1896", needs=("sp>1",), named="gradient-partial")
class FlatGradientOfKeys(Supervised):
    """The gradients of keys and values are cut flat, as if columns came before heads."""

    family = "deepseek-v3"

    def attention(
        self, layer: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **named: Any
    ) -> Any:
        if self.sp.size() > 1:
            k, v = (_FlatBackward.apply(x) for x in (k, v))  # type: ignore[no-untyped-call]
        return super().attention(layer, q, k, v, *rest, **named)


LEFT_OUT: dict[str, str] = {}
