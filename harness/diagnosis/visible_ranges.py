"""Find the range of tokens that each token must have seen, if no hypothesis explains all tokens.

In a model of one layer the loss of a token depends on itself and on the tokens that it sees. So
every range of the stream is tried for each token, until one gives the loss that the candidate
reported: with sixteen digits a wrong range cannot fit by chance.

Legend: T tokens of a stream with its padding, S ranges that are tried, N heads, K kv heads, H head
dim, D hidden, V vocabulary.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import torch
from torch import Tensor

from harness.diagnosis.evidence import Evidence
from harness.diagnosis.forward import Forward, Pass
from harness.reference.decoder import Decoder, Layer, linear, rms_norm, rope_rotation

# Tokens that may be seen beside or instead of the right ones; the first kind found is the name.
KINDS = {
    "future-leak": "later tokens",
    "pad-leak": "padding",
    "segment-leak": "tokens of another row",
    "window-ignored": "tokens beyond its window",
    "attention-cut": "less than it should",
}
MOST_CHOICES = 256


def kinds_of_wrong_ranges(evidence: Evidence, plain: Forward) -> set[str] | None:
    """Return the kinds of wrong ranges that explain all losses; None if some stay unexplained."""
    if evidence.case.layers > 1:
        return None
    kinds: set[str] = set()
    for stream in plain.passes:
        ranges_ST = _ranges(len(stream.ids_T))
        layer = _OneLayer(plain.model, stream)
        for t in np.flatnonzero(np.isin(stream.numbers_T.numpy(), evidence.targets)):
            n = int(stream.numbers_T[t])
            loss_S = layer.losses(int(t), ranges_ST, int(evidence.labels_n[n]))
            fits_S = evidence.alike(loss_S, np.full_like(loss_S, evidence.losses_n[n]))
            if not fits_S.any():
                return None
            kinds |= _kinds(stream, int(t), ranges_ST[torch.from_numpy(fits_S)])
    return kinds


def is_explained_by_kv_heads(evidence: Evidence, plain: Forward) -> bool:
    """Return whether any choice of a kv head for each head explains all losses."""
    case = evidence.case
    if case.kv_heads == 1 or case.kv_heads**case.heads > MOST_CHOICES:
        return False
    at = evidence.targets
    for kv_of_N in product(range(case.kv_heads), repeat=case.heads):
        tried = plain.with_passes(
            [replace(stream, kv_of_N=torch.tensor(kv_of_N)) for stream in plain.passes]
        )
        expected_n = tried.nll_by_label[np.arange(case.tokens), evidence.labels_n]
        if evidence.alike(expected_n[at], evidence.losses_n[at]).all():
            return True
    return False


def _ranges(length: int) -> Tensor:
    """Return every range of a stream as a mask, and the empty one."""
    at_T = torch.arange(length)
    pairs = [(s, e) for s in range(length) for e in range(s, length)]
    first_S, last_S = torch.tensor(pairs).T
    ranges_ST = (at_T >= first_S[:, None]) & (at_T <= last_S[:, None])
    return torch.cat((ranges_ST, torch.zeros(1, length, dtype=torch.bool)))


class _OneLayer:
    """The one layer of a stream's pass, evaluated one token at a time."""

    def __init__(self, model: Decoder, plain: Pass) -> None:
        self._model = model
        (self._layer,) = (layer for layer in model.layers if isinstance(layer, Layer))
        with torch.no_grad():
            self._x_TD = model.embed[plain.ids_T]
            rotation = rope_rotation(plain.positions_T, model.head_dim, model.dtype)
            q_TNH, k_TKH, v_TKH = self._layer.project(
                rms_norm(self._x_TD, self._layer.attn_norm), rotation
            )
            k_TNH, self._v_TNH = k_TKH[:, plain.kv_of_N], v_TKH[:, plain.kv_of_N]
            self._scores_NTT = torch.einsum("qnh,knh->nqk", q_TNH, k_TNH) * plain.scale

    @torch.no_grad()
    def losses(self, t: int, seen_ST: Tensor, label: int) -> np.ndarray:
        """Compute the loss of token t for each set of tokens that it may see."""
        scores_NST = self._scores_NTT[:, t, None, :].masked_fill(~seen_ST, float("-inf"))
        weights_NST = scores_NST.softmax(-1).nan_to_num()
        out_SNH = torch.einsum("nst,tnh->snh", weights_NST, self._v_TNH)
        x_SD = self._x_TD[t] + linear(out_SNH.flatten(1), self._layer.o)
        x_SD = x_SD + self._layer.feed_forward(rms_norm(x_SD, self._layer.mlp_norm))
        logits_SV = self._model.logits(rms_norm(x_SD, self._model.norm))
        losses: np.ndarray = -logits_SV.log_softmax(-1)[:, label].numpy()
        return losses


def _kinds(plain: Pass, t: int, fitting_ST: Tensor) -> set[str]:
    """Return how the fitting set that is nearest to the right one differs from it."""
    right_T = plain.seen_TT[t]
    seen_T = fitting_ST[(fitting_ST ^ right_T).sum(-1).argmin()]
    extra_T = seen_T & ~right_T
    at_T = torch.arange(len(right_T))
    same_T = plain.row_T == plain.row_T[t]
    differences = {
        "future-leak": extra_T & (at_T > t) & ~plain.is_padding,
        "pad-leak": extra_T & plain.is_padding,
        "segment-leak": extra_T & ~same_T & (at_T <= t) & ~plain.is_padding,
        "window-ignored": extra_T & same_T & (at_T <= t),
        "attention-cut": right_T & ~seen_T,
    }
    return {kind for kind, which_T in differences.items() if which_T.any()}
