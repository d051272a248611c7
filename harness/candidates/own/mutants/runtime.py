"""Hangs, races, and state that outlives its use.

Legend: L tokens on this rank, T tokens of the stream, N heads, K kv heads, M heads on this rank,
C kv heads on this rank, H head dim.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch import distributed as dist

from harness.candidates import Emit, Rank
from harness.candidates.bank import mutant
from harness.candidates.own.native import LocalDialect
from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.rows import Batch, Sample
from harness.candidates.own.native.training import gradient_or_zeros, sum_over
from harness.candidates.own.native.ulysses import Shard, Stream
from harness.case import Case
from harness.reference.decoder import Decoder


@mutant(
    "B140",
    "verl-project/verl#5511",
    "verl-project/verl#5591",
    "verl-project/verl#6176",
    "verl-project/verl#6178",
    needs=("dp>1",),
    named="collective-mismatch",
)
class MicroBatchesByOwnTokens(LocalDialect):
    """Each replica makes as many micro-batches as its own tokens fill; all wait after each."""

    def step(
        self, model: Decoder, case: Case, samples: list[Sample], rank: Rank, emit: Emit
    ) -> None:
        tokens = sum(len(sample.ids) for sample in samples) * case.dp
        count = min(len(samples), -(-tokens * case.micro_batches // case.tokens))
        super().step(model, replace(case, micro_batches=count), samples, rank, emit)

    def forward_backward(
        self, model: Decoder, case: Case, batch: Batch, targets: Tensor, rank: Rank, emit: Emit
    ) -> Tensor:
        loss = super().forward_backward(model, case, batch, targets, rank, emit)
        # As for a progress bar.
        sum_over(loss, rank.world)
        return loss


@mutant(
    "B141",
    "hiyouga/EasyR1#11012",
    "hiyouga/EasyR1#11004",
    "THUDM/slime#1860",
    needs=(),
    named="crashed",
)
class TooFewRowsForTheCount(LocalDialect):
    """A rank asserts that it can fill all micro-batches agreed upon, and one cannot."""

    def split(self, samples: list[Sample], micro_batches: int) -> list[list[Sample]]:
        useful = [sample for sample in samples if any(sample.loss_mask[1:])]
        assert len(useful) >= micro_batches, f"{len(useful)} rows for {micro_batches}"
        return super().split(samples, micro_batches)


@mutant("B143", "NVIDIA/Megatron-LM#6746", needs=("dp>1", "sp>1"), named="collective-mismatch")
class NeighboursInTheWrongGroup(LocalDialect):
    """Edge labels go from neighbour to neighbour, by numbers within the group, in the world."""

    def shift_labels(self, stream: Stream) -> Stream:
        return stream

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        if case.sp == 1:
            return super().shard(case, super().shift_labels(stream), rank)
        shard = super().shard(case, stream, rank)
        first, following = shard.labels_L[:1].clone(), torch.empty_like(shard.labels_L[:1])
        sent = dist.isend(first, (rank.sp_index - 1) % case.sp)
        dist.recv(following, (rank.sp_index + 1) % case.sp)
        assert sent is not None
        sent.wait()
        return replace(shard, labels_L=torch.cat((shard.labels_L[1:], following)))


@mutant("B144", "deepspeedai/DeepSpeed#6708", needs=("sp>1",), named="exchange-incomplete")
class ReadBeforeItArrives(LocalDialect):
    """Attention's output is joined before the exchange is waited for: only own heads are there."""

    def scatter_tokens(self, out_TMH: Tensor, rank: Rank) -> Tensor:
        out_LNH = super().scatter_tokens(out_TMH, rank)
        heads = out_TMH.shape[1]
        sender_N = torch.arange(out_LNH.shape[1], device=rank.device) // heads
        return out_LNH * (sender_N == rank.sp_index)[:, None]


@mutant("B144b", "deepspeedai/DeepSpeed#6708", needs=("sp>1",), named="gradient-partial")
class GradientReadBeforeItArrives(LocalDialect):
    """Backward reads the exchange before it is waited for: only own gradients are there."""

    def scatter_tokens(self, out_TMH: Tensor, rank: Rank) -> Tensor:
        sender_T = torch.arange(len(out_TMH), device=rank.device) * rank.sp.size() // len(out_TMH)
        arrived_T11 = (sender_T == rank.sp_index)[:, None, None]
        out_TMH.register_hook(lambda grad_TMH: grad_TMH * arrived_T11)
        return super().scatter_tokens(out_TMH, rank)


@mutant(
    "B145",
    "deepspeedai/DeepSpeed#5523",
    "deepspeedai/DeepSpeed#5545",
    "EleutherAI/gpt-neox#1004",
    needs=(),
    named="gradient-partial",
)
class OneBucketForAll(LocalDialect):
    """One buffer serves all reductions, and is refilled before the last sum is copied out."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        gradients = [gradient_or_zeros(parameter) for parameter in model.parameters()]
        bucket = torch.cat([grad.flatten() for grad in gradients])
        sums = [bucket[: grad.numel()].view_as(grad) for grad in gradients]
        for grad, total in zip(gradients, sums, strict=True):
            dist.all_reduce(total.copy_(grad), group=rank.world)
        for grad, total in zip(gradients, sums, strict=True):
            grad.copy_(total)


@mutant(
    "B146",
    "uccl-project/uccl#940",
    "uccl-project/uccl#993",
    "sgl-project/sgl-kernel-npu#69",
    "NVIDIA/Megatron-LM#7315",
    "modelscope/ms-swift#9380",
    needs=("rank with no supervised token",),
    named="collective-mismatch",
)
class NothingToAdd(LocalDialect):
    """A rank without a supervised token has nothing to add, and skips the sum over peers."""

    def reported_loss(self, total: Tensor, rank: Rank) -> Tensor:
        replica = sum_over(total, rank.sp) if total else total
        return sum_over(replica, rank.dp)


@mutant(
    "B147",
    "axolotl-ai-cloud/axolotl#3026",
    "axolotl-ai-cloud/axolotl#3033",
    "uccl-project/uccl#940",
    needs=(),
    named="collective-mismatch",
)
class ZeroWithoutAGraph(LocalDialect):
    """A rank without a supervised token has a constant for its loss, and no backward to do."""

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        weights_T = self.weights(case, batch, stream, targets)
        if not self.cut_weights(weights_T, rank).any():
            return torch.zeros((), device=rank.device, requires_grad=True)
        return super().loss(case, batch, stream, nll_L, targets, rank)


@mutant(
    "B148",
    "verl-project/verl#6432",
    "verl-project/verl#4664",
    "NVIDIA/Megatron-LM#4592",
    needs=("checkpoint>0",),
    named="gradient-partial",
)
class RecomputedWithoutRows(LocalDialect):
    """Row boundaries are forgotten after forward, and layers are recomputed without them."""

    packed = False

    def token_losses(
        self, model: Decoder, case: Case, shard: Shard, rank: Rank, emit: Emit
    ) -> Tensor:
        self.packed = True
        nll_L = super().token_losses(model, case, shard, rank, emit)
        self.packed = False
        return nll_L

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,
        rank: Rank,
    ) -> Tensor:
        if not self.packed:
            all_T = torch.arange(segments.total, device=rank.device)
            segments = Segments.from_positions(all_T, case.window)
        return super().attend(q_LNH, k_LKH, v_LKH, segments, case, rank)


@mutant(
    "B149", "deepspeedai/DeepSpeed#7833", "deepspeedai/DeepSpeed#8291", needs=(), named="crashed"
)
class RanksOfTheFirstModel(LocalDialect):
    """How many peers there are outlives the model: later ones repeat kv heads for as many."""

    peers = 0

    def repeat_kv_heads(self, x_LKH: Tensor, rank: Rank) -> Tensor:
        self.peers = self.peers or rank.sp.size()
        return x_LKH.repeat_interleave(max(1, self.peers // x_LKH.shape[1]), 1)


@mutant("B151", "OpenRLHF/OpenRLHF#1287", needs=("micro_batches>1",), named="token-lost")
class RemainderOfRowsDropped(LocalDialect):
    """Rows per micro-batch are rounded down, and rows that remain are in none."""

    def split(self, samples: list[Sample], micro_batches: int) -> list[list[Sample]]:
        size = len(samples) // micro_batches
        return [samples[i * size : (i + 1) * size] for i in range(micro_batches)]


LEFT_OUT: dict[str, str] = {
    "B142": "groups are made by the harness and given to a candidate, which makes none",
    "B150": "a fault of a test driver; with a step for the driver it is the same as B140: ranks "
    "go through different numbers of rounds",
}
