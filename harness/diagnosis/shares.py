"""Whose share of a gradient is missing, or counts more than once.

Plain training is given one copy of every parameter for each rank's tokens: the gradient of a copy
is what those tokens add to the whole. A gradient that is wrong is then a sum of these shares with
other coefficients than one, or no sum of them at all.

Legend: T tokens of a stream with its padding, n any token of the case by its number, E elements of
a gradient, R ranks.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from harness.compare import alike
from harness.compare.picture import Picture
from harness.diagnosis.evidence import Evidence, Mask
from harness.diagnosis.forward import Forward, Pass, passes
from harness.diagnosis.readout import small
from harness.reference.decoder import Decoder, Layer, linear, rms_norm, rope_rotation
from harness.trace import GRADIENT
from harness.trace.trace import Values

# How often a rank's share of a gradient counts, by gradient and rank.
Counts = dict[tuple[str, int], float]
NO_SUM = "no sum of the ranks' shares, as after a wrong backward of an exchange"
MOST_TOLD = 3
DIGITS = 6


def told_by_shares(wrong: Sequence[Evidence]) -> str:
    """What holds on all of these cases."""
    found = [counts_of_shares(evidence) for evidence in wrong]
    if any(counts is None for counts in found):
        return NO_SUM
    known = [counts for counts in found if counts]
    every = dict.fromkeys(part for counts in known for part in counts)
    said = []
    for part in every:
        seen = {round(counts[part], 6) for counts in known if part in counts}
        if len(seen) == 1 and seen != {1.0}:
            said.append(f"{part[0]}: rank {part[1]}'s share {_said(*seen)}")
    more = f" and {len(said) - MOST_TOLD} more" if len(said) > MOST_TOLD else ""
    return "; ".join(said[:MOST_TOLD]) + more


def with_shares(picture: Picture, evidence: Evidence) -> Picture:
    """Add the shares that each gradient is the sum of, if it is such a sum."""
    shares: dict[str, dict[int, float]] = {}
    for (name, rank), count in (counts_of_shares(evidence) or {}).items():
        shares.setdefault(name, {})[rank] = float(f"{count:.{DIGITS}f}") + 0.0
    return replace(picture, shares=shares)


def counts_of_shares(evidence: Evidence) -> Counts | None:
    """Count each rank's share in every gradient; None if one is no sum of shares."""
    forward = Forward(evidence.case, passes(evidence.case, evidence.owner_n))
    ranks = [rank for rank in np.unique(evidence.owner_n) if rank >= 0]
    shares = [_share(forward, evidence, evidence.owner_n == rank) for rank in ranks]
    counts: Counts = {}
    sizes = (float(np.abs(x).max()) for share in shares for x in share.values())
    least = small(evidence.case.dtype) * max(sizes, default=0.0)
    for key in evidence.got:
        if not shares or key not in shares[0]:
            continue
        share_ER = np.stack([share[key].ravel() for share in shares], 1)
        wanted = evidence.got[key].values.astype(np.float64).ravel()
        count_R = np.linalg.lstsq(share_ER, wanted)[0]
        if not alike(share_ER @ count_R, wanted, evidence.case.dtype, least).all():
            return None
        adds_R = np.abs(share_ER).max(0) > least
        name = key.removeprefix(GRADIENT)
        counts |= {(name, int(ranks[r])): float(count_R[r]) for r in np.flatnonzero(adds_R)}
    return counts


def _said(count: float) -> str:
    return "is missing" if count == 0 else f"counts {count:g} times"


def _share(forward: Forward, evidence: Evidence, mine_n: Mask) -> dict[str, Values]:
    """The gradients of the copies that these tokens use."""
    live, frozen = (Decoder(forward.case, torch.float64) for _ in range(2))
    frozen.requires_grad_(requires_grad=False)
    weight_n = torch.from_numpy(evidence.oracle["weight"].values.astype(np.float64))
    label_n = torch.from_numpy(evidence.labels_n)
    loss = torch.zeros((), dtype=torch.float64)
    for each in forward.passes:
        real_T = ~each.is_padding
        numbers = each.numbers_T[real_T]
        logits_TV = each.read(_logits(each, live, frozen, torch.from_numpy(mine_n)))[real_T]
        surprise_T = -logits_TV.log_softmax(-1).gather(1, label_n[numbers, None])[:, 0]
        loss = loss + (surprise_T * weight_n[numbers]).sum()
    names, parameters = zip(*live.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, materialize_grads=True)
    return {f"{GRADIENT}{name}": x.numpy() for name, x in zip(names, found, strict=True)}


def _logits(plain: Pass, live: Decoder, frozen: Decoder, mine_n: Tensor) -> Tensor:
    """A pass in which these tokens use one copy of each parameter, and all others another."""
    mine_T = mine_n[plain.numbers_T.clamp(min=0)] & ~plain.is_padding

    def either(one: Tensor, other: Tensor) -> Tensor:
        return torch.where(mine_T.view(-1, *[1] * (one.dim() - 1)), one, other)

    rotation = rope_rotation(plain.positions_T, live.head_dim, live.dtype)
    x = either(live.embed[plain.ids_T], frozen.embed[plain.ids_T])
    for pair in zip(live.layers, frozen.layers, strict=True):
        one, other = (layer for layer in pair if isinstance(layer, Layer))
        of_one, of_other = (
            layer.project(rms_norm(x, layer.attn_norm), rotation) for layer in (one, other)
        )
        q, k, v = (either(*both) for both in zip(of_one, of_other, strict=True))
        out = plain.attend(q, k, v).flatten(-2)
        x = x + either(linear(out, one.o), linear(out, other.o))
        x = x + either(
            one.feed_forward(rms_norm(x, one.mlp_norm)),
            other.feed_forward(rms_norm(x, other.mlp_norm)),
        )
    x = either(rms_norm(x, live.norm), rms_norm(x, frozen.norm))
    return either(live.logits(x), frozen.logits(x))
