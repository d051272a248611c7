"""Name a wrong output of attention whose queries, keys and values are right.

Each wrong token and head is explained, if possible, by another kv head, or by another first token
that it sees.

Legend: T tokens of one stream, N heads, K kv heads, H head dim, S first tokens to be tried, n any
token of the case by its number.
"""

from dataclasses import dataclass

import numpy as np

from harness.compare import Look
from harness.diagnosis.evidence import Evidence, Mask
from harness.trace.trace import Tokens, Values


@dataclass(frozen=True)
class Heads:
    """Queries, keys and values of one layer, and its expected and actual output, by token."""

    q_nNH: Values
    k_nKH: Values
    v_nKH: Values
    out_nNH: Values
    got_nNH: Values

    def kv_head(self, head: int) -> int:
        kv_heads, queries = self.k_nKH.shape[1], self.q_nNH.shape[1]
        return head * int(kv_heads) // int(queries)


def is_plain_attention(evidence: Evidence, heads: Heads) -> bool:
    """Return whether our attention gives the oracle's output for these queries, keys and values.

    The model of a candidate that is compared with itself may have sinks, or another scale.
    """
    first_n = _first_seen(evidence)
    return all(
        evidence.alike(
            _outputs_by_start(heads, stream, head, heads.kv_head(head))[
                np.arange(len(stream)), first_n[stream]
            ],
            heads.out_nNH[stream, head],
        ).all()
        for stream in evidence.streams
        for head in range(heads.q_nNH.shape[1])
    )


def name_attention(evidence: Evidence, heads: Heads) -> Look:
    """Name the change of attention that turns the expected output into the actual one."""
    right_nN = evidence.alike(heads.out_nNH, heads.got_nNH, dims=(2,))
    summary = f"attention is wrong for {int((~right_nN).any(-1).sum())} of {len(right_nN)} tokens"
    if not heads.got_nNH[~right_nN].any():
        whole = not right_nN[~right_nN.all(-1)].any()
        name = "attention-cut" if whole else "exchange-incomplete"
        return Look(name, f"{summary}: {'they see nothing' if whole else 'some heads are zero'}")
    return (
        _name_order(evidence, heads, right_nN, summary)
        or _name_range(evidence, heads, right_nN, summary)
        or _name_positions(evidence, heads, summary)
        or _name_pairing(evidence, heads, right_nN, summary)
        or _name_repeats(evidence, heads, summary)
        or _name_padding(evidence, right_nN, summary)
        or Look(
            "head-order",
            f"{summary}, and no kv head, row boundary or window explains it: tokens or heads are "
            "mixed on the way",
        )
    )


def _name_order(evidence: Evidence, heads: Heads, right_nN: Mask, summary: str) -> Look | None:
    """Find the right numbers in another order: within a token, or over a stream."""
    wrong = np.flatnonzero(~right_nN.all(-1))
    flat = heads.out_nNH.shape[0], -1
    expected, got = (np.sort(x.reshape(flat), -1) for x in (heads.out_nNH, heads.got_nNH))
    if evidence.alike(expected[wrong], got[wrong]).all():
        return Look("head-order", f"{summary}: the right numbers, in another order")
    for stream in evidence.streams:
        expected, got = (np.sort(x[stream].ravel()) for x in (heads.out_nNH, heads.got_nNH))
        if not evidence.alike(expected, got).all():
            return None
    return Look("head-order", f"{summary}: the stream's right numbers, of other tokens and heads")


def _name_range(evidence: Evidence, heads: Heads, right_nN: Mask, summary: str) -> Look | None:
    """Explain every wrong token by another first, or a later last, token that it sees."""
    kinds: set[str] = set()
    for stream in evidence.streams:
        for head in range(right_nN.shape[1]):
            wrong = np.flatnonzero(~right_nN[stream, head])
            names = _kinds_of_ranges(evidence, heads, stream, head, wrong)
            if "" in names:
                return None
            kinds |= names
    for kind, description in (
        ("future-leak", "it sees later tokens"),
        ("segment-leak", "it sees another row"),
        ("window-ignored", "it sees beyond its window"),
        ("attention-cut", "it does not see all of its row that it should"),
    ):
        if kind in kinds:
            return Look(kind, f"{summary}: {description}")
    return None


def _kinds_of_ranges(
    evidence: Evidence, heads: Heads, stream: Tokens, head: int, wrong: Tokens
) -> set[str]:
    """Name the other range that explains each wrong token; an empty name if none does."""
    if not wrong.size:
        return set()
    first_T = _first_seen(evidence)[stream]
    row_start_T = (evidence.place_n - evidence.position_n)[stream]
    got_TH = heads.got_nNH[stream, head]
    out_TSH = _outputs_by_start(heads, stream, head, heads.kv_head(head))
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


def _name_positions(evidence: Evidence, heads: Heads, summary: str) -> Look | None:
    """Explain all outputs by a mask that compares positions and ignores rows."""
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
        "segment-leak", f"{summary}: it sees what is not behind it in its own row, in any row"
    )


def _name_pairing(evidence: Evidence, heads: Heads, right_nN: Mask, summary: str) -> Look | None:
    """Explain every wrong head by another kv head, or by another query head."""
    first_n = _first_seen(evidence)
    queries, keys = heads.q_nNH.shape[1], heads.k_nKH.shape[1]
    is_mixed = False
    for shard in evidence.shards:
        stream = evidence.streams[evidence.stream_n[shard[0]]]
        at = evidence.place_n[shard]
        outputs = {
            (query, key): _outputs_by_start(heads, stream, query, key)[at, first_n[shard]]
            for query in range(queries)
            for key in range(keys)
        }
        for head in range(queries):
            if right_nN[shard, head].all():
                continue
            got = heads.got_nNH[shard, head]
            fitting = [
                query for (query, _), out in outputs.items() if evidence.alike(out, got).all()
            ]
            if not fitting:
                return None
            is_mixed = is_mixed or head not in fitting
    if is_mixed:
        return Look("head-order", f"{summary}: a head has the output of another")
    return Look("kv-repeat", f"{summary}: a query head attends with another kv head than its own")


def _name_repeats(evidence: Evidence, heads: Heads, summary: str) -> Look | None:
    """Explain all outputs by one rank's keys that count once per peer."""
    sp, first_n = evidence.case.sp, _first_seen(evidence)
    for peer in range(sp if sp > 1 else 0):
        counts_n = np.where(evidence.owner_n % sp == peer, sp, 1)
        if all(
            evidence.alike(
                _outputs_by_start(heads, stream, head, heads.kv_head(head), counts_n[stream])[
                    np.arange(len(stream)), first_n[stream]
                ],
                heads.got_nNH[stream, head],
            ).all()
            for stream in evidence.streams
            for head in range(heads.q_nNH.shape[1])
        ):
            return Look("keys-repeated", f"{summary}: keys of peer {peer} count {sp} times")
    return None


def _name_padding(evidence: Evidence, right_nN: Mask, summary: str) -> Look | None:
    """Name a leak of padding if exactly the rows with padding before them are wrong."""
    wrong_n, after_padding_n = ~right_nN.all(-1), evidence.left_padded_n
    if wrong_n.any() and np.array_equal(wrong_n, after_padding_n):
        return Look("pad-leak", f"{summary}: those of rows with padding before them")
    return None


def _first_seen(evidence: Evidence) -> Tokens:
    """Return the stream position of the first token that each token should see."""
    window = evidence.case.window or evidence.case.tokens
    back_n = np.minimum(evidence.position_n, window - 1)
    first_n: Tokens = evidence.place_n - back_n
    return first_n


def _outputs_by_start(
    heads: Heads, stream: Tokens, head: int, kv_head: int, counts_T: Values | int = 1
) -> Values:
    """Return the output (T, S, H) of token t if the first token that it sees is s.

    It is NaN for s > t. Each key counts `counts_T` times.
    """
    scores_TT = _scores(heads, stream, head, kv_head)
    later_TT = np.triu(np.ones_like(scores_TT, bool), 1)
    scores_TT = np.where(later_TT, -np.inf, scores_TT)
    weights_TT = np.exp(scores_TT - scores_TT.max(-1, keepdims=True)) * counts_T
    v_TH = heads.v_nKH[stream, kv_head].astype(np.float64)
    terms_TSH = weights_TT[:, :, None] * v_TH[None]
    # A reversed cumulative sum gives the sums from s on, for every s at once.
    numerator_TSH = np.cumsum(terms_TSH[:, ::-1], 1)[:, ::-1]
    denominator_TS = np.cumsum(weights_TT[:, ::-1], 1)[:, ::-1]
    with np.errstate(invalid="ignore"):
        out_TSH: Values = numerator_TSH / denominator_TS[:, :, None]
    return out_TSH


def _sees_later(evidence: Evidence, heads: Heads, stream: Tokens, head: int, t: int) -> bool:
    """Return whether token t sees later tokens of its row or stream, with earlier ones or not."""
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
