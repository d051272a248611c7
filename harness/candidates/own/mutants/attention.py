"""Bugs in the attention kernel, and in the row boundaries and masks that it gets.

Legend: B rows, S longest row, L tokens on this rank, T tokens of the whole padded stream, N heads,
K kv heads, M heads on this rank, C kv heads on this rank, H head dim.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates import Rank
from harness.candidates.bank import mutant
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.candidates.own.native.attention import Kernel, Segments
from harness.candidates.own.native.rows import Batch
from harness.candidates.own.native.ulysses import Shard, Stream, pad_to_multiple
from harness.case import Case


@mutant(
    "B56",
    "axolotl-ai-cloud/axolotl#2495",
    "huggingface/trl#6843",
    "NVIDIA/Megatron-LM#2357",
    "NVIDIA-NeMo/RL#4167",
    needs=(),
    named="segment-leak",
)
class OneDocument(LocalDialect):
    """The kernel is given one row as long as the stream, and packed rows see each other."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        return segments_from(row_starts(shard)[:1], shard, case)


@mutant("B57", "huggingface/accelerate#4177", needs=("window>0",), named="window-ignored")
class PlainCausal(LocalDialect):
    """The mask is stripped for plain causal attention, and with it the sliding window."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        return super().segments(shard, replace(case, window=None))


@mutant("B57b", "huggingface/accelerate#4177", needs=("left-padded row",), named="pad-leak")
class PaddingUnmasked(GatherDialect):
    """Left padding stays in the stream, its mask is stripped, and tokens after it attend to it."""

    def unpad(self, batch: Batch) -> Stream:
        self.width = batch.ids_BS.shape[1]
        kept_BS = batch.attended_BS.flip(1).int().cummax(1).values.flip(1).bool()
        return super().unpad(replace(batch, attended_BS=kept_BS))

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        columns_T = pad_to_multiple(stream.indices_T % self.width, case.sp, 0)
        return replace(shard, positions_TP=columns_T)


@mutant(
    "B58",
    "PrimeIntellect-ai/prime-rl#2418",
    "PrimeIntellect-ai/prime-rl#2828",
    needs=("window shorter than a row that is cut",),
    named="window-ignored",
)
class WindowGatedOnShard(LocalDialect):
    """The window is switched off where the sequence is no longer than it, by a shard's length."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        if case.window is not None and len(shard.ids_L) <= case.window:
            case = replace(case, window=None)
        return super().segments(shard, case)


@mutant(
    "B60",
    "verl-project/verl#6187",
    "PrimeIntellect-ai/prime-rl#3003",
    needs=("sp>1",),
    named="attention-cut",
)
class BoundariesOfShards(LocalDialect):
    """Attention over the stream gets boundaries counted on shards, each of which begins a row."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        positions_T = shard.positions_TP
        shards = torch.arange(0, len(positions_T), len(shard.ids_L), device=positions_T.device)
        return segments_from(torch.cat((row_starts(shard), shards)), shard, case)


@mutant("B61", "PrimeIntellect-ai/prime-rl#2392", needs=("sp>1",), named="segment-leak")
class FirstPositionIsOffset(LocalDialect):
    """A shard's first position is read as an offset, and its rows begin by so much too late."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        starts, size = row_starts(shard), len(shard.ids_L)
        late = starts + shard.positions_TP[starts // size * size]
        return segments_from(late[late < len(shard.positions_TP)], shard, case)


@mutant("B62", "huggingface/transformers#46634", needs=("sp>1",), named="segment-leak")
class MaskHidesPacking(GatherDialect):
    """A padded stream brings a mask of ones, and with a mask packed rows are not looked for."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        if shard.pad:
            return segments_from(row_starts(shard)[:1], shard, case)
        return super().segments(shard, case)


@mutant(
    "B63",
    "modelscope/ms-swift#9904",
    "modelscope/ms-swift#9903",
    needs=("one-token row",),
    named="segment-leak",
)
class StrictDecrease(LocalDialect):
    """A row begins where positions decrease, which they do not after a row of one token."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        decreases = (shard.positions_TP.diff() < 0).nonzero().squeeze(-1)
        return segments_from(decreases + 1, shard, case)


@mutant(
    "B64",
    "huggingface/transformers#33268",
    "huggingface/transformers#39814",
    "huggingface/transformers#47496",
    "huggingface/transformers#47525",
    needs=("sp>1",),
    named="attention-cut",
)
class NoLeadingBoundary(LocalDialect):
    """What stands before the first position zero of a shard is in no row and gets no attention."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        self.in_row_L = (shard.positions_L == 0).cumsum(0) > 0
        return super().segments(shard, case)

    def attend(self, *arguments: Any) -> Tensor:
        return super().attend(*arguments) * self.in_row_L[:, None, None]


@mutant(
    "B65",
    "huggingface/transformers#44911",
    "huggingface/transformers#47342",
    "verl-project/verl#7137",
    needs=(),
    named="crashed",
)
class ThreeAxesFlattened(GatherDialect):
    """Positions along three axes are flattened, and look like three times as many packed rows."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        return Segments.from_positions(shard.positions_TP.expand(3, -1).flatten(), case.window)


@mutant(
    "B66",
    "NVIDIA/TransformerEngine#3331",
    "NVIDIA/TransformerEngine#3332",
    "NVIDIA/TransformerEngine#1012",
    "NVIDIA/Megatron-LM#1669",
    needs=("sp>1",),
    named="attention-cut",
)
class RemaindersCutOff(LocalDialect):
    """A row is as long as sp times each rank's share, rounded down: what is left is cut off it."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        starts, length = row_starts(shard), len(shard.positions_TP)
        shares = F.pad(starts, (0, 1), value=length).diff() // case.sp
        ends = starts + shares * case.sp
        return segments_from(torch.cat((starts, ends[ends < length])), shard, case)


@mutant(
    "B67",
    "fla-org/flash-linear-attention#892",
    "Dao-AILab/flash-attention#1228",
    "Dao-AILab/flash-attention#2324",
    "pytorch/pytorch#188933",
    "tile-ai/tilelang#2461",
    needs=("sp>1",),
    named="non-finite",
)
class UnwrittenTail(GatherDialect):
    """Attention writes nothing behind the last boundary, and weight gradients sum over it all."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        self.pads_L11 = (shard.tokens_L < 0)[:, None, None]
        return super().segments(shard, case)

    def attend(self, *arguments: Any) -> Tensor:
        return super().attend(*arguments).masked_fill(self.pads_L11, torch.nan)


@mutant(
    "B67b",
    "fla-org/flash-linear-attention#892",
    "Dao-AILab/flash-attention#1228",
    "Dao-AILab/flash-attention#2324",
    "pytorch/pytorch#188933",
    "tile-ai/tilelang#2461",
    needs=("sp>1",),
    named="non-finite",
)
class UnwrittenGradient(LocalDialect):
    """Attention's backward writes no gradient behind the last boundary; forward is exact."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        self.pads_L11 = (shard.tokens_L < 0)[:, None, None]
        return super().segments(shard, case)

    def attend(self, q_LNH: Tensor, *rest: Any) -> Tensor:
        q_LNH.register_hook(lambda grad_LNH: grad_LNH.masked_fill(self.pads_L11, torch.nan))
        return super().attend(q_LNH, *rest)


@mutant(
    "B68",
    "ModelTC/LightX2V#1285",
    "huggingface/transformers#48353",
    needs=("sp>1",),
    named="attention-cut",
)
class LongestOnShard(LocalDialect):
    """The longest row is that of the shard, and what lies further on in a row is not computed."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        longest = (shard.positions_L == 0).cumsum(0).bincount().max()
        self.reached_T11 = (shard.positions_TP < longest)[:, None, None]
        return super().segments(shard, case)

    def kernel(self, case: Case) -> Kernel:
        whole = super().kernel(case)
        return lambda q_TMH, *rest: whole(q_TMH, *rest) * self.reached_T11


@mutant("B71", "vllm-project/vllm-omni#672", needs=("sp>1",), named="attention-cut")
class PadMaskInverted(GatherDialect):
    """The mask of a padded stream is inverted: padding is kept, and a token sees itself only."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        allowed_TT = super().segments(shard, case).allowed_TT
        if shard.pad:
            allowed_TT[:, : -shard.pad] = False
            allowed_TT.fill_diagonal_(fill_value=True)
        return Segments.masked(allowed_TT)


@mutant("B71b", "vllm-project/vllm-omni#672", needs=(), named="future-leak")
class TrueMeansHidden(LocalDialect):
    """The causal mask has True for hidden, the kernel for seen: tokens see later ones instead."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        return Segments.masked(super().segments(shard, case).allowed_TT.mT)


@mutant("B71c", "vllm-project/vllm-omni#672", needs=(), named="input-replaced")
class OneMaskForTheOther(LocalDialect):
    """The loss mask is taken for the padding mask, and the model reads padding for prompts."""

    def unpad(self, batch: Batch) -> Stream:
        stream = super().unpad(batch)
        supervised_T = batch.loss_mask_BS.flatten()[stream.indices_T]
        return replace(stream, ids_T=stream.ids_T * supervised_T)


@mutant("B72", "pytorch/pytorch#141429", needs=("sp>1",), named="head-order")
class HeadAndTail(LocalDialect):
    """Outputs are put back as if each rank had been dealt one piece from either end."""

    def scatter_tokens(self, out_TMH: Tensor, rank: Rank) -> Tensor:
        last = 2 * rank.sp.size() - 1
        dealt = [piece for i in range(rank.sp.size()) for piece in (i, last - i)]
        pieces = out_TMH.tensor_split(last + 1)
        back = torch.cat([pieces[dealt.index(piece)] for piece in range(last + 1)])
        return super().scatter_tokens(back, rank)


def row_starts(shard: Shard) -> Tensor:
    """Return where rows begin in the stream; the padding at its end is one of them."""
    return (shard.positions_TP == 0).nonzero().squeeze(-1)


def segments_from(starts: Tensor, shard: Shard, case: Case) -> Segments:
    """Make segments from boundaries: each ends one row and begins the next, as for a kernel."""
    at_T = torch.arange(len(shard.positions_TP), device=starts.device)
    begins_T = torch.zeros_like(at_T).index_put((starts,), starts).cummax(0).values
    return Segments.from_positions(at_T - begins_T, case.window)


LEFT_OUT: dict[str, str] = {
    "B69": "Our model has no layer with a state, and steps of models that have one pack no rows.",
    "B70": "Equivalent: an empty row between two equal boundaries allows and hides no token.",
}
