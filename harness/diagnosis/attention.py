"""What attention's output tells of what was attended to, given the right queries, keys and values.

Each wrong token and head is explained, where it can be, by another kv head, or by another first
token that it sees.

Legend: T tokens of one stream, N heads, K kv heads, H head dim, S first tokens to be tried.
"""

from dataclasses import dataclass

import numpy as np

from harness.compare import Look
from harness.diagnosis.evidence import Evidence, Mask
from harness.trace.trace import Tokens, Values


@dataclass(frozen=True)
class Heads:
    """Queries, keys and values of one layer, in token order."""

    q_nNH: Values
    k_nKH: Values
    v_nKH: Values
    out_nNH: Values
    got_nNH: Values

    def kv_head(self, head: int) -> int:
        kv_heads, queries = self.k_nKH.shape[1], self.q_nNH.shape[1]
        return head * int(kv_heads) // int(queries)


def is_plain_attention(evidence: Evidence, heads: Heads) -> bool:
    """Whether the right output is what ours makes of these queries, keys and values.

    A candidate that is compared with itself may have sinks, or another scale.
    """
    first_n = _first_seen(evidence)
    return all(
        evidence.alike(
            _from_each_start(heads, stream, head, heads.kv_head(head))[
                np.arange(len(stream)), first_n[stream]
            ],
            heads.out_nNH[stream, head],
        ).all()
        for stream in evidence.streams
        for head in range(heads.q_nNH.shape[1])
    )


def name_attention(evidence: Evidence, heads: Heads) -> Look:
    """What a wrong output of attention is the right output of."""
    right_nN = evidence.alike(heads.out_nNH, heads.got_nNH, dims=(2,))
    said = f"attention is wrong for {int((~right_nN).any(-1).sum())} of {len(right_nN)} tokens"
    if not heads.got_nNH[~right_nN].any():
        whole = not right_nN[~right_nN.all(-1)].any()
        name = "attention-cut" if whole else "exchange-incomplete"
        return Look(name, f"{said}: {'they see nothing' if whole else 'some heads are zero'}")
    return (
        _name_order(evidence, heads, right_nN, said)
        or _name_range(evidence, heads, right_nN, said)
        or _name_positions(evidence, heads, said)
        or _name_pairing(evidence, heads, right_nN, said)
        or _name_repeats(evidence, heads, said)
        or _name_padding(evidence, right_nN, said)
        or Look(
            "head-order",
            f"{said}, and no kv head, row boundary or window explains it: tokens or heads are "
            "mixed on the way",
        )
    )


def _name_order(evidence: Evidence, heads: Heads, right_nN: Mask, said: str) -> Look | None:
    """Find right numbers in another order: within a token, or over a stream."""
    wrong = np.flatnonzero(~right_nN.all(-1))
    flat = heads.out_nNH.shape[0], -1
    expected, got = (np.sort(x.reshape(flat), -1) for x in (heads.out_nNH, heads.got_nNH))
    if evidence.alike(expected[wrong], got[wrong]).all():
        return Look("head-order", f"{said}: the right numbers, in another order")
    for stream in evidence.streams:
        expected, got = (np.sort(x[stream].ravel()) for x in (heads.out_nNH, heads.got_nNH))
        if not evidence.alike(expected, got).all():
            return None
    return Look("head-order", f"{said}: the stream's right numbers, of other tokens and heads")


def _name_range(evidence: Evidence, heads: Heads, right_nN: Mask, said: str) -> Look | None:
    """Every wrong token explained by another first, or a later last, token that it sees."""
    kinds: set[str] = set()
    for stream in evidence.streams:
        for head in range(right_nN.shape[1]):
            wrong = np.flatnonzero(~right_nN[stream, head])
            names = _ranges(evidence, heads, stream, head, wrong)
            if "" in names:
                return None
            kinds |= names
    for kind, what in (
        ("future-leak", "it sees later tokens"),
        ("segment-leak", "it sees another row"),
        ("window-ignored", "it sees beyond its window"),
        ("attention-cut", "it does not see all of its row that it should"),
    ):
        if kind in kinds:
            return Look(kind, f"{said}: {what}")
    return None


def _ranges(
    evidence: Evidence, heads: Heads, stream: Tokens, head: int, wrong: Tokens
) -> set[str]:
    """By what other range each wrong token is explained; an empty name where by none."""
    if not wrong.size:
        return set()
    first_T = _first_seen(evidence)[stream]
    row_start_T = (evidence.place_n - evidence.position_n)[stream]
    got_TH = heads.got_nNH[stream, head]
    out_TSH = _from_each_start(heads, stream, head, heads.kv_head(head))
    names = set()
    for t in wrong:
        starts = np.flatnonzero(evidence.alike(out_TSH[t, : t + 1], got_TH[None, t], dims=(1,)))
        if not starts.size:
            later = _sees_later(evidence, heads, stream, head, int(t))
            names.add("future-leak" if later else "")
            continue
        start = starts[np.abs(starts - first_T[t]).argmin()]
        if start < row_start_T[t]:
            names.add("segment-leak")
        else:
            names.add("window-ignored" if start < first_T[t] else "attention-cut")
    return names


def _name_positions(evidence: Evidence, heads: Heads, said: str) -> Look | None:
    """All outputs explained by positions alone, whichever row they are of."""
    for stream in evidence.streams:
        back_TT = evidence.position_n[stream][:, None] - evidence.position_n[stream]
        seen_TT = (back_TT >= 0) & (back_TT < (evidence.case.window or evidence.case.tokens))
        for head in range(heads.q_nNH.shape[1]):
            kv_head = heads.kv_head(head)
            scores_TT = np.where(seen_TT, _scores(heads, stream, head, kv_head), -np.inf)
            weights_TT = np.exp(scores_TT - scores_TT.max(-1, keepdims=True))
            out_TH = weights_TT @ heads.v_nKH[stream, kv_head] / weights_TT.sum(-1, keepdims=True)
            if not evidence.alike(out_TH, heads.got_nNH[stream, head]).all():
                return None
    return Look(
        "segment-leak", f"{said}: it sees what is not behind it in its own row, in any row"
    )


def _name_pairing(evidence: Evidence, heads: Heads, right_nN: Mask, said: str) -> Look | None:
    """Every wrong head explained by another kv head, or by another query head."""
    first_n = _first_seen(evidence)
    queries, keys = heads.q_nNH.shape[1], heads.k_nKH.shape[1]
    mixed = False
    for piece in evidence.shards:
        stream = evidence.streams[evidence.stream_n[piece[0]]]
        at = evidence.place_n[piece]
        outputs = {
            (query, key): _from_each_start(heads, stream, query, key)[at, first_n[piece]]
            for query in range(queries)
            for key in range(keys)
        }
        for head in range(queries):
            if right_nN[piece, head].all():
                continue
            got = heads.got_nNH[piece, head]
            fitting = [
                query for (query, _), out in outputs.items() if evidence.alike(out, got).all()
            ]
            if not fitting:
                return None
            mixed = mixed or head not in fitting
    if mixed:
        return Look("head-order", f"{said}: a head has the output of another")
    return Look("kv-repeat", f"{said}: a query head attends with another kv head than its own")


def _name_repeats(evidence: Evidence, heads: Heads, said: str) -> Look | None:
    """All outputs explained by the keys of one rank that count once per peer."""
    sp, first_n = evidence.case.sp, _first_seen(evidence)
    for peer in range(sp if sp > 1 else 0):
        counts_n = np.where(evidence.owner_n % sp == peer, sp, 1)
        if all(
            evidence.alike(
                _from_each_start(heads, stream, head, heads.kv_head(head), counts_n[stream])[
                    np.arange(len(stream)), first_n[stream]
                ],
                heads.got_nNH[stream, head],
            ).all()
            for stream in evidence.streams
            for head in range(heads.q_nNH.shape[1])
        ):
            return Look("keys-repeated", f"{said}: keys of peer {peer} count {sp} times")
    return None


def _name_padding(evidence: Evidence, right_nN: Mask, said: str) -> Look | None:
    """Wrong in rows that have padding before them, and only there."""
    wrong_n, after_padding_n = ~right_nN.all(-1), evidence.left_padded_n
    if wrong_n.any() and np.array_equal(wrong_n, after_padding_n):
        return Look("pad-leak", f"{said}: those of rows with padding before them")
    return None


def _first_seen(evidence: Evidence) -> Tokens:
    """The first place in the stream that each token sees."""
    window = evidence.case.window or evidence.case.tokens
    back_n = np.minimum(evidence.position_n, window - 1)
    first_n: Tokens = evidence.place_n - back_n
    return first_n


def _from_each_start(
    heads: Heads, stream: Tokens, head: int, kv_head: int, counts_T: Values | int = 1
) -> Values:
    """Out (T, S, H): what token t has if the first token that it sees is s; NaN for s > t."""
    scores_TT = _scores(heads, stream, head, kv_head)
    later_TT = np.triu(np.ones_like(scores_TT, bool), 1)
    scores_TT = np.where(later_TT, -np.inf, scores_TT)
    weights_TT = np.exp(scores_TT - scores_TT.max(-1, keepdims=True)) * counts_T
    v_TH = heads.v_nKH[stream, kv_head].astype(np.float64)
    terms_TSH = weights_TT[:, :, None] * v_TH[None]
    # Sums from s on, for every s at once.
    over_TSH = np.cumsum(terms_TSH[:, ::-1], 1)[:, ::-1]
    under_TS = np.cumsum(weights_TT[:, ::-1], 1)[:, ::-1]
    with np.errstate(invalid="ignore"):
        out_TSH: Values = over_TSH / under_TS[:, :, None]
    return out_TSH


def _sees_later(evidence: Evidence, heads: Heads, stream: Tokens, head: int, t: int) -> bool:
    """Whether token t sees later ones of its row or of the stream, earlier ones or not."""
    scores_T = _scores(heads, stream, head, heads.kv_head(head))[t]
    v_TH = heads.v_nKH[stream, heads.kv_head(head)]
    got_H = heads.got_nNH[stream[t], head]
    same_row_T = evidence.row_n[stream] == evidence.row_n[stream[t]]
    later_T = np.arange(len(stream)) >= t
    for seen_T in (same_row_T, np.ones_like(same_row_T), same_row_T & later_T, later_T):
        weights_T = np.where(seen_T, np.exp(scores_T - scores_T.max()), 0.0)
        out_H = weights_T @ v_TH / weights_T.sum()
        if evidence.alike(out_H, got_H).all():
            return True
    return False


def _scores(heads: Heads, stream: Tokens, head: int, kv_head: int) -> Values:
    q_TH = heads.q_nNH[stream, head].astype(np.float64)
    k_TH = heads.k_nKH[stream, kv_head].astype(np.float64)
    scores_TT: Values = q_TH @ k_TH.T * q_TH.shape[-1] ** -0.5
    return scores_TT
