"""Find whose share of a gradient is missing, or counts more than once.

Plain training gets one copy of every parameter for each rank's tokens: the gradient of a copy is
what those tokens add to the whole. A wrong gradient is then a sum of these shares with other
coefficients than one, or no sum of them at all.

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
from harness.diagnosis.forward import Forward, Pass, plain_passes
from harness.diagnosis.readout import least_size
from harness.reference.decoder import Decoder, Layer, linear, rms_norm, rope_rotation
from harness.trace import GRADIENT
from harness.trace.trace import Values

# How many times a rank's share of a gradient counts, by gradient and rank.
Counts = dict[tuple[str, int], float]
NO_SUM = "no sum of the ranks' shares, as after a wrong backward of an exchange"
MOST_DESCRIBED = 3
DIGITS = 6


def describe_shares(wrong: Sequence[Evidence]) -> str:
    """Describe the shares that count wrongly on all of these cases; an empty text if none do."""
    found = [counts_of_shares(evidence) for evidence in wrong]
    if any(counts is None for counts in found):
        return NO_SUM
    known = [counts for counts in found if counts]
    parts = dict.fromkeys(part for counts in known for part in counts)
    texts = []
    for gradient, rank in parts:
        values = {
            round(counts[gradient, rank], 6) for counts in known if (gradient, rank) in counts
        }
        if len(values) == 1 and values != {1.0}:
            texts.append(f"{gradient}: rank {rank}'s share {_describe_count(*values)}")
    more = f" and {len(texts) - MOST_DESCRIBED} more" if len(texts) > MOST_DESCRIBED else ""
    return "; ".join(texts[:MOST_DESCRIBED]) + more


def with_shares(picture: Picture, evidence: Evidence) -> Picture:
    """Add to the picture how many times each rank's share counts in each gradient."""
    shares: dict[str, dict[int, float]] = {}
    for (name, rank), count in (counts_of_shares(evidence) or {}).items():
        shares.setdefault(name, {})[rank] = float(f"{count:.{DIGITS}f}") + 0.0
    return replace(picture, shares=shares)


def counts_of_shares(evidence: Evidence) -> Counts | None:
    """Count each rank's share in every gradient; None if a gradient is no sum of shares."""
    forward = Forward(evidence.case, plain_passes(evidence.case, evidence.owner_n))
    ranks = [rank for rank in np.unique(evidence.owner_n) if rank >= 0]
    shares = [_share(forward, evidence, evidence.owner_n == rank) for rank in ranks]
    counts: Counts = {}
    sizes = (float(np.abs(x).max()) for share in shares for x in share.values())
    least = least_size(evidence.case.dtype) * max(sizes, default=0.0)
    for key in evidence.got:
        if not shares or key not in shares[0]:
            continue
        share_ER = np.stack([share[key].ravel() for share in shares], 1)
        got_E = evidence.got[key].values.astype(np.float64).ravel()
        count_R = np.linalg.lstsq(share_ER, got_E)[0]
        if not alike(share_ER @ count_R, got_E, evidence.case.dtype, least).all():
            return None
        adds_R = np.abs(share_ER).max(0) > least
        name = key.removeprefix(GRADIENT)
        counts |= {(name, int(ranks[r])): float(count_R[r]) for r in np.flatnonzero(adds_R)}
    return counts


def _describe_count(count: float) -> str:
    return "is missing" if count == 0 else f"counts {count:g} times"


def _share(forward: Forward, evidence: Evidence, live_n: Mask) -> dict[str, Values]:
    """Return the gradients of the parameter copies that the live tokens use."""
    live, frozen = (Decoder(forward.case, torch.float64) for _ in range(2))
    frozen.requires_grad_(requires_grad=False)
    weight_n = torch.from_numpy(evidence.oracle["weight"].values.astype(np.float64))
    label_n = torch.from_numpy(evidence.labels_n)
    loss = torch.zeros((), dtype=torch.float64)
    for plain in forward.passes:
        real_T = ~plain.is_padding
        numbers = plain.numbers_T[real_T]
        logits_TV = _logits(plain, live, frozen, torch.from_numpy(live_n))
        logits_TV = plain.change_logits(logits_TV)[real_T]
        nll_T = -logits_TV.log_softmax(-1).gather(1, label_n[numbers, None])[:, 0]
        loss = loss + (nll_T * weight_n[numbers]).sum()
    names, parameters = zip(*live.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, materialize_grads=True)
    return {f"{GRADIENT}{name}": x.numpy() for name, x in zip(names, found, strict=True)}


def _logits(plain: Pass, live: Decoder, frozen: Decoder, live_n: Tensor) -> Tensor:
    """Compute a pass in which live tokens use one copy of each parameter, and others another."""
    live_T = live_n[plain.numbers_T.clamp(min=0)] & ~plain.is_padding

    def select(of_live: Tensor, of_frozen: Tensor) -> Tensor:
        return torch.where(live_T.view(-1, *[1] * (of_live.dim() - 1)), of_live, of_frozen)

    rotation = rope_rotation(plain.positions_T, live.head_dim, live.dtype)
    x = select(live.embed[plain.ids_T], frozen.embed[plain.ids_T])
    for pair in zip(live.layers, frozen.layers, strict=True):
        one, other = (layer for layer in pair if isinstance(layer, Layer))
        of_one, of_other = (
            layer.project(rms_norm(x, layer.attn_norm), rotation) for layer in (one, other)
        )
        q, k, v = (select(*both) for both in zip(of_one, of_other, strict=True))
        out = plain.attend(q, k, v).flatten(-2)
        x = x + select(linear(out, one.o), linear(out, other.o))
        x = x + select(
            one.feed_forward(rms_norm(x, one.mlp_norm)),
            other.feed_forward(rms_norm(x, other.mlp_norm)),
        )
    x = select(rms_norm(x, live.norm), rms_norm(x, frozen.norm))
    return select(live.logits(x), frozen.logits(x))
