"""Attention to some of the keys, and how several such partial results are joined.

Legend: L tokens on this rank, X tokens of one block, N heads, K kv heads, H head dim.
"""

import torch
from torch import Tensor

from harness.candidates.own.benign.attention import LOWEST, heads_first, softmax_scale
from harness.reference.decoder import at_least_fp32

# What queries get from one block of keys: the weighted sum of values, the sum of weights, and the
# highest score, which both sums are relative to.
Partial = tuple[Tensor, Tensor, Tensor]


def attend_partially(q_LNH: Tensor, k_XKH: Tensor, v_XKH: Tensor, allowed_LX: Tensor) -> Partial:
    """Attend to one block of keys; a query that sees none of them gets zeros and not NaN."""
    q_NLH, k_NXH, v_NXH = map(at_least_fp32, heads_first(q_LNH, k_XKH, v_XKH))
    scores_NLX = (q_NLH @ k_NXH.mT * softmax_scale(q_LNH)).masked_fill(~allowed_LX, LOWEST)
    lowest_NL1 = scores_NLX.new_full((*scores_NLX.shape[:2], 1), LOWEST)
    highest_NL1 = torch.cat((scores_NLX.detach(), lowest_NL1), -1).amax(-1, keepdim=True)
    weights_NLX = (scores_NLX - highest_NL1).exp() * allowed_LX
    return weights_NLX @ v_NXH, weights_NLX.sum(-1, keepdim=True), highest_NL1


def join_partials(partials: list[Partial], q_LNH: Tensor) -> Tensor:
    """Join the results of all blocks, as if they were one block -> out_LNH."""
    highest = torch.stack([score for _, _, score in partials]).amax(0)
    sums = sum(values * (score - highest).exp() for values, _, score in partials)
    totals = sum(weights * (score - highest).exp() for _, weights, score in partials)
    assert isinstance(sums, Tensor)
    return (sums / totals).to(q_LNH.dtype).transpose(0, 1)
