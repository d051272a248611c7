"""Attention with a learnt sink for each head, which no model of the harness has, and two bugs."""

import torch
from torch import Tensor
from torch import distributed as dist

from harness.candidates import Emit, Rank
from harness.candidates.own.native import LocalDialect
from harness.candidates.own.native.attention import Kernel, Segments
from harness.candidates.own.native.kernels import repeat_for_queries
from harness.candidates.required import OnlyRequired
from harness.case import Case
from harness.reference import TORCH_DTYPES


class Sinks(LocalDialect):
    """A correct step: each head may also attend to nothing, by a learnt amount."""

    sinks: Tensor
    own_heads: slice

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        dtype = TORCH_DTYPES[case.dtype]
        self.sinks = torch.linspace(-0.02, 0.02, case.heads, dtype=dtype).requires_grad_()
        count = case.heads // case.sp
        first = self.first_head(rank.sp_index * count)
        self.own_heads = slice(first, first + count)
        super().run(case, rank, emit)
        gradient = self.sinks.grad
        assert gradient is not None
        dist.all_reduce(gradient, group=rank.world)
        emit("grad.sinks", gradient)

    def first_head(self, of_rank: int) -> int:
        return of_rank

    def kernel(self, case: Case) -> Kernel:  # noqa: ARG002 - the same for every kernel
        def attend(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
            k_TMH, v_TMH = (repeat_for_queries(x, q_TMH) for x in (k_TCH, v_TCH))
            q_MTH, k_MTH, v_MTH = (x.transpose(0, 1) for x in (q_TMH, k_TMH, v_TMH))
            scores_MTT = q_MTH @ k_MTH.mT * q_TMH.shape[-1] ** -0.5
            scores_MTT = scores_MTT.masked_fill(~segments.allowed_TT, float("-inf"))
            sinks_MT1 = self.sinks[self.own_heads, None, None].expand(-1, len(q_TMH), 1)
            weights_MTS = torch.cat([scores_MTT, sinks_MT1], -1).softmax(-1)
            return (weights_MTS[..., :-1] @ v_MTH).transpose(0, 1)

        return attend


class NotCut(Sinks):
    """Every rank uses the sinks of the first rank's heads."""

    def first_head(self, of_rank: int) -> int:  # noqa: ARG002 - the bug
        return 0


class AttentionOff(Sinks):
    """Attention is a little too sharp where ranks share a sequence, which no sink explains."""

    def kernel(self, case: Case) -> Kernel:
        attend = super().kernel(case)
        factor = 1 + 1e-4 * (case.sp > 1)
        return lambda q, k, v, segments: attend(q * factor, k, v, segments)


SINKS, NOT_CUT, ATTENTION_OFF = Sinks(), NotCut(), AttentionOff()
NOT_CUT_QUIET, ATTENTION_OFF_QUIET = OnlyRequired(NOT_CUT), OnlyRequired(ATTENTION_OFF)
