"""Attention computed in other ways.

Legend: L tokens on this rank, T tokens of the stream, X tokens of one row or block, M query heads
on this rank, C kv heads on this rank, G query heads to a kv head, H head dim.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from harness.candidates import Rank
from harness.candidates.bank import benign
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.candidates.own.native.attention import Kernel, Segments
from harness.candidates.own.native.ulysses import Shard
from harness.case import Case
from harness.reference.decoder import Decoder, at_least_fp32
from harness.reference.weights import TORCH_DTYPES

# Far below every score and yet finite, so that a block in which all is masked gives no NaN.
LOWEST = -1e30
BLOCK = 3


def heads_first(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Repeat kv heads for their queries, and put heads before tokens -> q_MTH, k_MTH, v_MTH."""
    group = q_TMH.shape[1] // k_TCH.shape[1]
    k_MTH, v_MTH = (x.transpose(0, 1).repeat_interleave(group, 0) for x in (k_TCH, v_TCH))
    return q_TMH.transpose(0, 1), k_MTH, v_MTH


def softmax_scale(q_TMH: Tensor) -> float:
    return float(q_TMH.shape[-1] ** -0.5)


def attend_in_blocks(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
    """Attend to a few keys at a time; a larger score scales down the sums of earlier blocks."""
    q_MTH, k_MTH, v_MTH = map(at_least_fp32, heads_first(q_TMH, k_TCH, v_TCH))
    sum_MTH = torch.zeros_like(q_MTH)
    total_MT1 = sum_MTH[..., :1]
    highest_MT1 = total_MT1 + LOWEST
    for k_MXH, v_MXH, allowed_TX in zip(
        k_MTH.split(BLOCK, 1),
        v_MTH.split(BLOCK, 1),
        segments.allowed_TT.split(BLOCK, 1),
        strict=True,
    ):
        scores_MTX = (q_MTH @ k_MXH.mT * softmax_scale(q_TMH)).masked_fill(~allowed_TX, LOWEST)
        now_MT1 = torch.maximum(highest_MT1, scores_MTX.detach().amax(-1, keepdim=True))
        weights_MTX = (scores_MTX - now_MT1).exp()
        shrink_MT1 = (highest_MT1 - now_MT1).exp()
        sum_MTH = sum_MTH * shrink_MT1 + weights_MTX @ v_MXH
        total_MT1 = total_MT1 * shrink_MT1 + weights_MTX.sum(-1, keepdim=True)
        highest_MT1 = now_MT1
    return (sum_MTH / total_MT1).to(q_TMH.dtype).transpose(0, 1)


@benign("keys-in-blocks", looks_like="B132, outputs of blocks merged")
class KeysInBlocks(LocalDialect):
    """Softmax is taken over a few keys at a time, with a running maximum and a running sum."""

    def kernel(self, case: Case) -> Kernel:  # noqa: ARG002 - the same for every kernel
        return attend_in_blocks


def attend_and_merge(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
    """Attend to each block of keys, and weight its output by its share of the softmax sum."""
    q_MTH, k_MTH, v_MTH = map(at_least_fp32, heads_first(q_TMH, k_TCH, v_TCH))
    scores_MTT = (q_MTH @ k_MTH.mT * softmax_scale(q_TMH)).masked_fill(
        ~segments.allowed_TT, LOWEST
    )
    blocks = scores_MTT.split(BLOCK, -1)
    outs = [x.softmax(-1) @ v for x, v in zip(blocks, v_MTH.split(BLOCK, 1), strict=True)]
    shares = torch.stack([x.logsumexp(-1, keepdim=True) for x in blocks]).softmax(0)
    return (torch.stack(outs) * shares).sum(0).to(q_TMH.dtype).transpose(0, 1)


@benign("blocks-merged-by-lse", looks_like="B133, a merge that overflows")
class BlocksMergedByLse(GatherDialect):
    """Attention to each block of keys is complete, and outputs are merged by log-sum-exp."""

    def kernel(self, case: Case) -> Kernel:  # noqa: ARG002 - the same for every kernel
        return attend_and_merge


@benign("row-by-row-attention", looks_like="B60, a kernel that is given boundaries of its own")
class RowByRowAttention(GatherDialect):
    """The kernel is called once for each row, with no other row in sight."""

    def kernel(self, case: Case) -> Kernel:
        inner = super().kernel(case)

        def row_by_row(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
            rows = zip(*(x.split(segments.lengths) for x in (q_TMH, k_TCH, v_TCH)), strict=True)
            outs = []
            for q_XMH, k_XCH, v_XCH in rows:
                alone = Segments.masked(segments.allowed_in_row(len(q_XMH)))
                outs.append(inner(q_XMH, k_XCH, v_XCH, alone))
            return torch.cat(outs)

        return row_by_row


@benign("queries-scaled", looks_like="softmax scaled twice, or not at all")
class QueriesScaled(LocalDialect):
    """The softmax scale is applied to queries, and scores are left as they are."""

    def kernel(self, case: Case) -> Kernel:
        return {"eager": eager_of_scaled_queries, "sdpa": sdpa_of_scaled_queries}[case.kernel]


def eager_of_scaled_queries(
    q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments
) -> Tensor:
    q_MTH, k_MTH, v_MTH = heads_first(q_TMH * softmax_scale(q_TMH), k_TCH, v_TCH)
    scores_MTT = (q_MTH @ k_MTH.mT).masked_fill(~segments.allowed_TT, float("-inf"))
    weights_MTT = at_least_fp32(scores_MTT).softmax(-1).to(q_TMH.dtype)
    return (weights_MTT @ v_MTH).transpose(0, 1)


def sdpa_of_scaled_queries(
    q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments
) -> Tensor:
    q_MTH, k_MTH, v_MTH = heads_first(q_TMH * softmax_scale(q_TMH), k_TCH, v_TCH)
    out_MTH = F.scaled_dot_product_attention(
        q_MTH[None], k_MTH[None], v_MTH[None], attn_mask=segments.allowed_TT, scale=1.0
    )
    return out_MTH[0].transpose(0, 1)


@benign("queries-grouped", looks_like="B45, kv heads tiled instead of interleaved")
class QueriesGrouped(GatherDialect):
    """Queries that share a kv head are a dim of their own, and no kv head is repeated."""

    def kernel(self, case: Case) -> Kernel:  # noqa: ARG002 - the same for every kernel
        return attend_grouped


def attend_grouped(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
    q_CGTH = q_TMH.unflatten(1, (k_TCH.shape[1], -1)).movedim(0, 2)
    k_C1TH, v_C1TH = (x.transpose(0, 1).unsqueeze(1) for x in (k_TCH, v_TCH))
    scores_CGTT = q_CGTH @ k_C1TH.mT * softmax_scale(q_TMH)
    scores_CGTT = scores_CGTT.masked_fill(~segments.allowed_TT, float("-inf"))
    weights_CGTT = at_least_fp32(scores_CGTT).softmax(-1).to(q_TMH.dtype)
    return (weights_CGTT @ v_C1TH).movedim(2, 0).flatten(1, 2)


@benign("mask-added", looks_like="B71, a mask of another type and polarity")
class MaskAdded(LocalDialect):
    """The mask is a number added to scores, zero where a token is seen and huge where not."""

    def kernel(self, case: Case) -> Kernel:
        return {"eager": eager_with_bias, "sdpa": sdpa_with_bias}[case.kernel]


def eager_with_bias(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
    q_MTH, k_MTH, v_MTH = heads_first(q_TMH, k_TCH, v_TCH)
    scores_MTT = q_MTH @ k_MTH.mT * softmax_scale(q_TMH) + mask_bias(q_TMH, segments)
    weights_MTT = at_least_fp32(scores_MTT).softmax(-1).to(q_TMH.dtype)
    return (weights_MTT @ v_MTH).transpose(0, 1)


def sdpa_with_bias(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
    q_MTH, k_MTH, v_MTH = heads_first(q_TMH, k_TCH, v_TCH)
    out_MTH = F.scaled_dot_product_attention(
        q_MTH[None], k_MTH[None], v_MTH[None], attn_mask=mask_bias(q_TMH, segments)
    )
    return out_MTH[0].transpose(0, 1)


def mask_bias(q_TMH: Tensor, segments: Segments) -> Tensor:
    """Return what the mask adds to scores: half of the lowest number, so that no sum overflows."""
    zeros_TT = q_TMH.new_zeros(segments.allowed_TT.shape)
    return zeros_TT.masked_fill(~segments.allowed_TT, torch.finfo(q_TMH.dtype).min / 2)


@benign("pads-see-everything", looks_like="a pad leak")
class PadsSeeEverything(GatherDialect):
    """Pad tokens attend to every token of the stream; no token attends to them."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        allowed_TT = super().segments(shard, case).allowed_TT
        allowed_TT[len(allowed_TT) - shard.pad :] = True
        return Segments.masked(allowed_TT)


@benign("pad-output-zeroed", looks_like="B67, rows behind the last boundary, never written")
class PadOutputZeroed(LocalDialect):
    """The kernel gets no pad token, and what it would have said of them is zero."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        real = len(shard.positions_TP) - shard.pad
        return Segments.from_positions(shard.positions_TP[:real], case.window)

    def kernel(self, case: Case) -> Kernel:
        inner = super().kernel(case)

        def without_pads(
            q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments
        ) -> Tensor:
            real = segments.total
            out_TMH = inner(q_TMH[:real], k_TCH[:real], v_TCH[:real], segments)
            return F.pad(out_TMH, (0, 0, 0, 0, 0, len(q_TMH) - real))

        return without_pads


@benign("window-gated", looks_like="B58, a window dropped where the shard is shorter")
class WindowGated(GatherDialect):
    """A window that reaches over the whole stream is left out; a shard's length is not asked."""

    def segments(self, shard: Shard, case: Case) -> Segments:
        reaches = case.window is not None and case.window >= len(shard.positions_TP)
        return super().segments(shard, replace(case, window=None) if reaches else case)


@benign("layers-recomputed", looks_like="B148, exchanges that run twice")
class LayersRecomputed(LocalDialect):
    """Every layer is run again in backward, whether or not the case asks for it."""

    def model(self, case: Case, rank: Rank) -> Decoder:
        return Decoder(replace(case, checkpoint=True), TORCH_DTYPES[case.dtype], rank.device)


@benign("attention-recomputed", looks_like="B148, attention run again on other boundaries")
class AttentionRecomputed(GatherDialect):
    """Only the kernel is run again in backward, without the exchanges around it."""

    def kernel(self, case: Case) -> Kernel:
        inner = super().kernel(case)

        def recomputed(q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, segments: Segments) -> Tensor:
            out: Tensor = checkpoint(inner, q_TMH, k_TCH, v_TCH, segments, use_reentrant=False)
            return out

        return recomputed
