"""Attention to some of the keys, and how several such are joined.

Legend: L tokens on this rank, X tokens of one block, N heads, K kv heads, H head dim.
"""

import torch
from torch import Tensor

from harness.candidates.own.benign.attention import LOWEST, heads_first, scale
from harness.reference.decoder import at_least_fp32

# What queries find in one block of keys: the sum of values, that of weights, the highest score.
Partial = tuple[Tensor, Tensor, Tensor]


def partial_of(q_LNH: Tensor, k_XKH: Tensor, v_XKH: Tensor, allowed_LX: Tensor) -> Partial:
    q_NLH, k_NXH, v_NXH = map(at_least_fp32, heads_first(q_LNH, k_XKH, v_XKH))
    scores_NLX = (q_NLH @ k_NXH.mT * scale(q_LNH)).masked_fill(~allowed_LX, LOWEST)
    lowest_NL1 = scores_NLX.new_full((*scores_NLX.shape[:2], 1), LOWEST)
    highest_NL1 = torch.cat((scores_NLX.detach(), lowest_NL1), -1).amax(-1, keepdim=True)
    weights_NLX = (scores_NLX - highest_NL1).exp() * allowed_LX
    return weights_NLX @ v_NXH, weights_NLX.sum(-1, keepdim=True), highest_NL1


def joined(partials: list[Partial], q_LNH: Tensor) -> Tensor:
    """As if all blocks had been one -> out_LNH."""
    highest = torch.stack([each[2] for each in partials]).amax(0)
    sums = sum(each[0] * (each[2] - highest).exp() for each in partials)
    totals = sum(each[1] * (each[2] - highest).exp() for each in partials)
    assert isinstance(sums, Tensor)
    return (sums / totals).to(q_LNH.dtype).transpose(0, 1)
