"""Attention of a recipe's model that is called, or computed, in another way.

Legend: R rows, S columns, L columns of this rank, N heads, H head dim.
"""

from typing import Any

import torch
from torch import Tensor

from harness.candidates.bank import benign
from harness.candidates.own.shares.losses import Grpo, GrpoSequences
from harness.candidates.own.shares.step import Supervised
from harness.recipes import ulysses


@benign("keys-gathered-beside-sinks", looks_like="B181, sinks of other heads than a rank computes")
class KeysGatheredBesideSinks(Supervised):
    """Keys and values of all columns come to each rank's queries, which have all heads."""

    family = "gpt-oss"

    def attention(
        self,
        _layer: Any,
        q_RNLH: Tensor,
        k_RNLH: Tensor,
        v_RNLH: Tensor,
        _mask: Any,
        *,
        scaling: float,
        real_RS: Tensor,
        s_aux: Tensor,
        sliding_window: int | None = None,
        **_: Any,
    ) -> Any:
        k, v = (
            self.all_columns(x).repeat_interleave(q_RNLH.shape[1] // x.shape[1], 1)
            for x in (k_RNLH, v_RNLH)
        )
        columns = real_RS.shape[1]
        place_S = torch.arange(columns, device=real_RS.device)
        seen_RSS = ulysses.visible(real_RS, place_S, sliding_window or columns)
        seen_RLS = ulysses.cut(seen_RSS, self.sp)
        scores_RNLS = (q_RNLH @ k.mT * scaling).masked_fill(~seen_RLS[:, None], float("-inf"))
        sinks_RNL1 = s_aux[:, None, None].expand(*scores_RNLS.shape[:3], 1)
        normaliser_RNL1 = torch.cat((scores_RNLS, sinks_RNL1), -1).logsumexp(-1, keepdim=True)
        out_RNLH = (scores_RNLS - normaliser_RNL1).exp() @ v
        return out_RNLH.transpose(1, 2), None

    def all_columns(self, x_RNLH: Tensor) -> Tensor:
        return self.whole(x_RNLH.transpose(1, 2)).transpose(1, 2)


@benign("queries-scaled-first", looks_like="softmax scaled twice, or not at all")
class QueriesScaledFirst(Supervised):
    """The scale of scores is applied to queries before they are exchanged."""

    family = "gemma-3"

    def attention(
        self, layer: Any, q_RNLH: Tensor, *others: Any, scaling: float, **named: Any
    ) -> Any:
        return super().attention(layer, q_RNLH * scaling, *others, scaling=1.0, **named)


@benign("heads-repeated-in-the-model", looks_like="B49, more kv heads sent than there are")
class HeadsRepeatedInTheModel(Grpo):
    """Each kv head is repeated for all of its queries before attention is called."""

    family = "mistral"

    def attention(
        self, layer: Any, q_RNLH: Tensor, k_RNLH: Tensor, v_RNLH: Tensor, *mask: Any, **named: Any
    ) -> Any:
        copies = q_RNLH.shape[1] // k_RNLH.shape[1]
        k_RNLH, v_RNLH = (x.repeat_interleave(copies, 1) for x in (k_RNLH, v_RNLH))
        return super().attention(layer, q_RNLH, k_RNLH, v_RNLH, *mask, **named)


@benign("a-row-at-a-time", looks_like="B60, a kernel that is given boundaries of its own")
class ARowAtATime(GrpoSequences):
    """Attention is called for each row of a micro-batch, with no other row in sight."""

    family = "qwen3"

    def attention(
        self,
        layer: Any,
        q_RNLH: Tensor,
        k_RNLH: Tensor,
        v_RNLH: Tensor,
        mask: Any,
        *,
        real_RS: Tensor,
        **named: Any,
    ) -> Any:
        rows = zip(*(x.split(1) for x in (q_RNLH, k_RNLH, v_RNLH, real_RS)), strict=True)
        outs = [
            super(ARowAtATime, self).attention(layer, q, k, v, mask, real_RS=real, **named)[0]
            for q, k, v, real in rows
        ]
        return torch.cat(outs), None
