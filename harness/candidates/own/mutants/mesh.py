"""Bugs with replicas, peers and process groups.

Legend: L tokens on this rank, N heads, K kv heads, H head dim.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from harness.candidates import Emit, Rank
from harness.candidates.bank import mutant
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.rows import Batch, Sample
from harness.candidates.own.native.training import gradient_or_zeros, sum_over
from harness.candidates.own.native.ulysses import Stream, sum_gradients
from harness.case import Case
from harness.reference.decoder import Decoder


@mutant(
    "B119",
    "ByteDance-Seed/VeOmni#1115",
    "ByteDance-Seed/VeOmni#1059",
    needs=("sp>1",),
    named="replica-split",
)
class SummedOverReplicasOnly(LocalDialect):
    """Gradients are summed over replicas, and every peer keeps its own part of them."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        sum_gradients(model, rank.dp, divide_by=1)


@mutant(
    "B120",
    "deepspeedai/DeepSpeed#4530",
    "deepspeedai/DeepSpeed#5248",
    "deepspeedai/DeepSpeed#5555",
    needs=("sp>1",),
    named="gradient-over-sp",
)
class PeersTakenForReplicas(LocalDialect):
    """Gradients are averaged over peers too, though each holds a part of one sum."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        sum_gradients(model, rank.world, divide_by=rank.sp.size())


@mutant("B121", "ByteDance-Seed/VeOmni#338", needs=("sp>1",), named="gradient-over-sp")
class PaidForReplicasOnly(LocalDialect):
    """The loss is multiplied by dp for a mean that is taken over dp times sp ranks."""

    def loss(self, case: Case, batch: Batch, *rest: Any) -> Tensor:
        return super().loss(case, batch, *rest) * case.dp

    def divisor(self, rank: Rank) -> int:
        return rank.world.size()

    def reported_loss(self, total: Tensor, rank: Rank) -> Tensor:
        return sum_over(total, rank.world) / rank.dp.size()


@mutant(
    "B122",
    "verl-project/verl#1136",
    "verl-project/verl#2703",
    needs=("sp>1",),
    named="gradient-over-sp",
)
class PeersAccumulateTheirOwn(GatherDialect):
    """Micro-batches are counted as if peers had rows of their own, and a mean is over too many."""

    def loss(self, case: Case, batch: Batch, *rest: Any) -> Tensor:
        loss = super().loss(case, batch, *rest)
        return loss / case.sp if case.loss == "micro-mean" else loss


@mutant(
    "B123",
    "EleutherAI/gpt-neox#1257",
    "modelscope/mcore-bridge#173",
    "NVIDIA/Megatron-LM#1446",
    "NVIDIA/Megatron-LM#7452",
    needs=("sp>1",),
    named="replica-split",
)
class NormNotSummedOverPeers(LocalDialect):
    """The last norm is not marked for the sum over peers: its gradient is of each shard alone."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        norm = gradient_or_zeros(model.norm).clone()
        dist.all_reduce(norm, group=rank.dp)
        super().reduce(model, rank)
        model.norm.grad = norm


@mutant(
    "B123b",
    "EleutherAI/gpt-neox#1257",
    "modelscope/mcore-bridge#173",
    "NVIDIA/Megatron-LM#1446",
    "NVIDIA/Megatron-LM#7452",
    needs=("sp>1",),
    named="gradient-partial",
)
class FirstPeerSpeaksForAll(LocalDialect):
    """The embedding is not summed over peers, and the first peer's gradient is given to all."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        embed = gradient_or_zeros(model.embed) * (rank.sp_index == 0)
        super().reduce(model, rank)
        dist.all_reduce(embed, group=rank.world)
        model.embed.grad = embed


@mutant("B124", "radixark/miles#2723", needs=("steps>1",), named="stale-state")
class OptimizerReadsAnotherBuffer(LocalDialect):
    """What is reduced is not the buffer that the optimizer reads: ranks drift from step two on."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        self.fused = [gradient_or_zeros(parameter).clone() for parameter in model.parameters()]
        super().reduce(model, rank)

    def update(self, model: Decoder) -> None:
        for parameter, fused in zip(model.parameters(), self.fused, strict=True):
            parameter.grad = fused
        super().update(model)


@mutant(
    "B125",
    "hpcaitech/Open-Sora#721",
    "NVlabs/LongLive#71",
    "NVlabs/LongLive#74",
    "axolotl-ai-cloud/axolotl#3920",
    "InternLM/xtuner#1029",
    "deepspeedai/DeepSpeed#7484",
    needs=("sp>1",),
    named="token-owned-twice",
)
class ShuffledByTheGlobalRank(LocalDialect):
    """Rows are shuffled by the global rank, and peers cut streams that are not the same."""

    def collate(self, case: Case, samples: list[Sample], rank: Rank) -> Batch:
        first = rank.index % len(samples)
        return super().collate(case, samples[first:] + samples[:first], rank)


@mutant(
    "B126",
    "hpcaitech/ColossalAI#6071",
    "sgl-project/sglang#16532",
    needs=("dp>1", "sp>1"),
    named="crashed",
)
class RowsByTheOtherMesh(LocalDialect):
    """Rows are dealt by rank % dp, as if replicas were neighbours: peers have different ones."""

    def samples(self, case: Case, rank: Rank) -> list[Sample]:
        return super().samples(case, replace(rank, dp_index=rank.index % case.dp))


@mutant("B127", "ByteDance-Seed/VeOmni#1076", needs=("dp>1",), named="gradient-times-dp")
class WorldForPeers(LocalDialect):
    """Where a sum is to be over peers the group is missing, and the world stands in for it."""

    def reduce(self, model: Decoder, rank: Rank) -> None:
        sum_gradients(model, rank.world, divide_by=1)
        sum_gradients(model, rank.dp, divide_by=1)


class GroupOfOne:
    """A process group of one rank."""

    def size(self) -> int:
        return 1


@mutant("B129", "modelscope/ms-swift#10061", needs=("sp>1",), named="vacuous")
class StaysAtOne(LocalDialect):
    """The setting of sp is not read: every rank computes all tokens, and nothing is exchanged."""

    def step(
        self, model: Decoder, case: Case, samples: list[Sample], rank: Rank, emit: Emit
    ) -> None:
        def emit_once(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            if tokens is not None and rank.sp_index > 0:
                tokens = torch.full_like(tokens, -1)
            emit(key, tensor, tokens)

        sp: Any = GroupOfOne()
        without_peers = replace(rank, sp_index=0, sp=sp, world=rank.dp)
        super().step(model, case, samples, without_peers, emit_once)

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,
        rank: Rank,  # noqa: ARG002 - there are no peers
    ) -> Tensor:
        return self.kernel(case)(q_LNH, k_LKH, v_LKH, segments)


@mutant(
    "B130",
    "hiyouga/LlamaFactory#10762",
    needs=("checkpoint>0", "sp>1"),
    named="denominator-per-rank",
)
class PlainLossInANewBranch(LocalDialect):
    """With checkpointing the step takes a branch of its own, which ends in each rank's mean."""

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        if not case.checkpoint or case.sp == 1:
            return super().loss(case, batch, stream, nll_L, targets, rank)
        counts_L = self.cut_weights(self.weights(case, batch, stream, targets), rank) > 0
        mean = (nll_L * counts_L).sum() / counts_L.sum().clamp(min=1)
        return mean / case.micro_batches / rank.world.size()


LEFT_OUT: dict[str, str] = {
    "B128": "our step does not clip gradients, and nothing else reads their norm",
}
