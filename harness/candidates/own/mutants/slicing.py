"""Bugs in slicing, in positions, and in what accompanies each token.

Legend: B rows, S longest row, L tokens on this rank, T tokens of the stream, N heads, K kv heads,
H head dim.
"""

from dataclasses import replace

import torch
from torch import Tensor

from harness.candidates import Emit, Rank
from harness.candidates.bank import mutant
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.rows import Batch, Sample
from harness.candidates.own.native.ulysses import Shard, Stream, cut
from harness.case import Case


@mutant("B29", "sgl-project/SpecForge#563", needs=("sp>1",), named="positions-restarted")
class PositionsWithoutTheRank(GatherDialect):
    """Positions leave out what lies on earlier ranks: a row that is cut begins again at zero."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        cut_row_L = (shard.positions_L == 0).cumsum(0) == 0
        positions_L = shard.positions_L - shard.positions_L[0] * cut_row_L
        return replace(shard, positions_L=positions_L)


@mutant("B30", "deepspeedai/DeepSpeed#5419", needs=("sp>1",), named="attention-cut")
class AttentionInTheShard(LocalDialect):
    """The sequence is split over ranks by hand, and attention runs on each rank's part alone."""

    def attend(
        self,
        q_LNH: Tensor,
        k_LKH: Tensor,
        v_LKH: Tensor,
        segments: Segments,
        case: Case,
        rank: Rank,
    ) -> Tensor:
        own = slice(rank.sp_index * len(q_LNH), (rank.sp_index + 1) * len(q_LNH))
        seen = Segments.masked(segments.allowed_TT[own, own])
        return self.kernel(case)(q_LNH, k_LKH, v_LKH, seen)


@mutant(
    "B31",
    "feifeibear/long-context-attention#57",
    needs=("dp>1", "sp>1"),
    named="token-owned-twice",
)
class SlicedByTheGlobalRank(LocalDialect):
    """A rank's place among its peers is reckoned from its number in the world, replicas or not."""

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        super().run(case, replace(rank, sp_index=rank.index // case.dp), emit)


@mutant(
    "B31b",
    "feifeibear/long-context-attention#57",
    needs=("dp>1", "sp>1"),
    named="positions-wrong",
)
class PositionsByTheGlobalRank(GatherDialect):
    """Ids are sliced by the rank within the group, positions by the rank in the world."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        positions_L = shard.positions_TP.chunk(case.sp)[min(rank.index, case.sp - 1)]
        return replace(shard, positions_L=positions_L)


@mutant(
    "B32",
    "NVIDIA/Megatron-LM#5243",
    "NVIDIA/Megatron-LM#4075",
    "NVIDIA/Megatron-LM#1473",
    needs=(),
    named="positions-wrong",
)
class TableFromTheFirstRow(GatherDialect):
    """Each row reads the packed table of positions from its start, where the first row's are."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        return replace(shard, positions_L=shard.positions_TP[shard.positions_L])


@mutant(
    "B33",
    "NVIDIA-NeMo/Automodel#1482",
    "verl-project/verl#6212",
    "verl-project/verl#7137",
    "modelscope/ms-swift#8468",
    needs=("sp>2",),
    named="positions-wrong",
)
class AxesCutAsOneLine(GatherDialect):
    """Positions with three axes are cut as if they had one, across the axes."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        positions_3T = shard.positions_TP.expand(3, -1)
        positions_L = cut(positions_3T.flatten(), rank)[: len(shard.ids_L)]
        return replace(shard, positions_L=positions_L)


@mutant(
    "B34", "verl-project/verl#5957", "verl-project/verl#6212", needs=("sp>1",), named="crashed"
)
class WeightsLeftWhole(LocalDialect):
    """Every input of a token is sliced but its weight, which stays as long as the stream."""

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:  # noqa: ARG002 - the bug
        return weights_T


@mutant(
    "B35",
    "verl-project/verl#5227",
    "verl-project/verl#3724",
    "verl-project/verl#2639",
    needs=("sp>1",),
    named="label-replaced",
)
class LabelsOfTheFirstShard(LocalDialect):
    """Only hidden states are sliced; labels stay whole, and each rank takes the first of them."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        return replace(shard, labels_L=stream.labels_T[: len(shard.ids_L)])


@mutant("B36", "verl-project/verl#6660", needs=("sp>1",), named="label-replaced")
class LabelsSlicedTwice(LocalDialect):
    """Labels that are sliced already are sliced again, and repeated to fit the logits."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        again = cut(shard.labels_L, rank, case.pad_id)
        return replace(shard, labels_L=again.repeat(case.sp)[: len(shard.ids_L)])


@mutant("B37", "areal-project/AReaL#434", needs=("sp>1",), named="mask-replaced")
class MaskOfOneShard(GatherDialect):
    """Losses are gathered; the mask that they meet is still one shard's, the first, repeated."""

    def loss(
        self, case: Case, batch: Batch, stream: Stream, nll_L: Tensor, targets: Tensor, rank: Rank
    ) -> Tensor:
        shard_L = batch.loss_mask_BS.flatten()[stream.indices_T][: len(nll_L)]
        mask_T = shard_L.repeat(case.sp)[: len(stream.ids_T)]
        mask_BS = torch.zeros_like(batch.loss_mask_BS)
        mask_BS.view(-1)[stream.indices_T] = mask_T
        masked = replace(batch, loss_mask_BS=mask_BS)
        return super().loss(case, masked, stream, nll_L, targets, rank)


@mutant("B38", "THUDM/slime#73", needs=("sp>1",), named="mask-replaced")
class ResponseBehindTheShard(LocalDialect):
    """How much of a shard is prompt comes out negative once the response began on another rank."""

    def cut_weights(self, weights_T: Tensor, rank: Rank) -> Tensor:
        weights_L = super().cut_weights(weights_T, rank).clone()
        response = int(weights_T.bool().int().argmax())
        weights_L[: response - rank.sp_index * len(weights_L)] = 0
        return weights_L


@mutant("B39", "sii-research/siiRL#69", needs=("sp>1",), named="token-owned-twice")
class PackedByEachPeer(LocalDialect):
    """Each peer packs the rows in an order of its own before it takes its slice."""

    def collate(self, case: Case, samples: list[Sample], rank: Rank) -> Batch:
        first = rank.sp_index % len(samples)
        return super().collate(case, samples[first:] + samples[:first], rank)


LEFT_OUT: dict[str, str] = {}
