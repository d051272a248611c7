"""Bugs with precision and randomness.

Legend: L tokens on this rank, T tokens of the whole padded stream, N heads, V vocabulary, M heads
on this rank, C kv heads on this rank, H head dim.
"""

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from harness.candidates import Rank
from harness.candidates.bank import mutant
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.candidates.own.native.attention import Kernel, Segments
from harness.candidates.own.native.training import gradient_or_zeros
from harness.case import Case
from harness.reference.decoder import Decoder


@mutant("B131", "deepspeedai/DeepSpeed#4530", needs=(), named="low-precision")
class SumsInBf16(LocalDialect):
    """Gradients of the parts of a sequence are summed over ranks in bf16."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        for parameter in model.parameters():
            short = gradient_or_zeros(parameter).bfloat16()
            dist.all_reduce(short, group=rank.world)
            parameter.grad = short.to(parameter.dtype)


@mutant(
    "B132",
    "zhuzilin/ring-flash-attention#22",
    "zhuzilin/ring-flash-attention#42",
    "Dao-AILab/flash-attention#2723",
    needs=(),
    named="low-precision",
)
class MergesInBf16(LocalDialect):
    """What each shard's keys add to attention is rounded to bf16 before it is merged."""

    def kernel(self, case: Case) -> Kernel:
        whole = super().kernel(case)

        def merged(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
            parts = []
            for keys in torch.arange(len(v_TCH), device=v_TCH.device).chunk(case.sp):
                v_only_TCH = torch.zeros_like(v_TCH).index_copy(0, keys, v_TCH[keys])
                parts.append(whole(q_TMH, k_TCH, v_only_TCH, segments).bfloat16())
            return torch.stack(parts).sum(0).to(v_TCH.dtype)

        return merged


@mutant(
    "B134",
    "verl-project/verl#550",
    "verl-project/verl#3129",
    needs=(),
    named="low-precision",
)
class LossInBf16(GatherDialect):
    """Logits are not upcast before the loss, which is computed in bf16."""

    def cross_entropy(self, logits_LV: Tensor, labels_L: Tensor) -> Tensor:
        nll_L = F.cross_entropy(logits_LV.bfloat16(), labels_L, reduction="none")
        return nll_L.to(logits_LV.dtype)


@mutant("B137", "zhuzilin/ring-flash-attention#87", needs=(), named="low-precision")
class BufferInFp16(LocalDialect):
    """Attention's backward writes the gradient of queries to a buffer that is always fp16."""

    def attend(self, q_LNH: Tensor, *rest: Any) -> Tensor:
        q_LNH.register_hook(lambda grad_LNH: grad_LNH.half().to(grad_LNH.dtype))
        return super().attend(q_LNH, *rest)


@mutant(
    "B138",
    "NVIDIA/Megatron-LM#1256",
    "NVIDIA/TransformerEngine#1272",
    "PaddlePaddle/PaddleFleetX#1005",
    needs=(),
    named="not-repeatable",
)
class UntrackedDropout(LocalDialect):
    """Dropout draws from the process's own generator, which no step seeds."""

    def attend(self, *arguments: Any) -> Tensor:
        return F.dropout(super().attend(*arguments), 0.1)


LEFT_OUT: dict[str, str] = {
    "B133": "Equivalent: our scores stay far below where an exponential overflows.",
    "B135": "No fault is described: the thread does not settle where the difference came from.",
    "B136": "No fault is described: errors that grow with depth are what low precision does.",
    "B139": "It is the step of B138: dropout is on in one path and off in the other.",
}
