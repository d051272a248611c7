"""Which tokens see which, and how sharply attention scores them.

Legend: T tokens of a stream with its padding.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from harness.diagnosis.forward import QKV, Pass, Variants, causal_mask


def windows(plain: Pass) -> Variants:
    """Yield passes with another window, or none."""
    window, row_T = plain.case.window, plain.row_T
    if window is None:
        return
    name = "window-ignored"
    yield name, "there is no window", _with_mask(plain, causal_mask(row_T, None))
    yield (
        name,
        "the window is one token too wide",
        _with_mask(plain, causal_mask(row_T, window + 1)),
    )
    gated = None if plain.shard_length <= window else window
    yield (
        name,
        "there is no window where a shard is no longer than it",
        _with_mask(plain, causal_mask(row_T, gated)),
    )
    if window > 1:
        narrower = _with_mask(plain, causal_mask(row_T, window - 1))
        yield "attention-cut", "the window is one token too narrow", narrower


def rows(plain: Pass) -> Variants:
    """Yield passes with other boundaries between rows."""
    name, window, row_T = "segment-leak", plain.case.window, plain.row_T
    at_T = torch.arange(len(row_T))
    real_T = torch.where(plain.is_padding, row_T, 0)
    begins_T = row_T.diff(prepend=row_T[:1]) != 0
    for how, other_T in (
        ("all rows are one", torch.zeros_like(row_T)),
        ("all rows are one, padding apart", real_T),
        (
            "only the boundaries of the first shard are known",
            (begins_T & (at_T < plain.shard_length)).cumsum(0),
        ),
        (
            "a row begins where positions decrease",
            (plain.positions_T.diff(prepend=plain.positions_T[:1]) < 0).cumsum(0),
        ),
        ("rows are one where the stream is padded", real_T * 0 if plain.stream.pad else row_T),
    ):
        yield name, how, _with_mask(plain, causal_mask(other_T, window))
        if window is not None:
            yield (
                name,
                f"{how}, and without a window",
                _with_mask(plain, causal_mask(other_T, None)),
            )


def cuts(plain: Pass) -> Variants:
    """Yield passes in which tokens see less than their row."""
    name, case, peer_T = "attention-cut", plain.case, plain.peer_T
    own_TT = torch.eye(len(peer_T), dtype=torch.bool)
    yield (
        name,
        "a token sees only its own shard",
        _with_mask(plain, plain.seen_TT & (peer_T[:, None] == peer_T)),
    )
    yield name, "a token sees only itself", _with_mask(plain, own_TT)
    sees_others_T1 = (plain.seen_TT & ~own_TT).any(1, keepdim=True)
    yield (
        name,
        "a token sees all but itself",
        _with_mask(plain, plain.seen_TT & ~(own_TT & sees_others_T1)),
    )
    shorter = min(plain.shard_length, case.window or plain.shard_length)
    yield (
        name,
        "a token sees no further back than a shard is long",
        _with_mask(plain, causal_mask(plain.row_T, shorter)),
    )


def padding(plain: Pass) -> Variants:
    """Yield a pass in which the padding before rows stays in the stream."""
    case, spans = plain.case, plain.stream.spans
    width = max(span.stop - span.start for span in spans)
    place, row = [], []
    for i, span in enumerate(spans):
        length = span.stop - span.start
        pads = width - length if case.rows[span.row].side == "left" else 0
        place += [-1] * pads + list(range(span.start, span.stop))
        row += [i] * (pads + length)
    tail = -len(place) % case.sp
    place, row = [*place, *[-1] * tail], [*row, *[len(spans)] * tail]
    if len(place) - tail == plain.stream.length:
        return
    at_T, row_T = torch.tensor(place), torch.tensor(row)
    pad_T = at_T < 0

    def take(values_T: Tensor, fill: int) -> Tensor:
        return values_T[at_T].masked_fill(pad_T, fill)

    yield (
        "pad-leak",
        "tokens attend to the padding before them",
        replace(
            plain,
            numbers_T=take(plain.numbers_T, -1),
            ids_T=take(plain.ids_T, case.pad_id),
            positions_T=take(plain.positions_T, 0),
            row_T=row_T,
            peer_T=torch.arange(len(place)) // (len(place) // case.sp),
            seen_TT=causal_mask(row_T, case.window),
            key_counts_T=torch.ones(len(place), dtype=torch.float64),
        ),
    )


def fillers(plain: Pass) -> Variants:
    """Yield a pass whose shards are padded one by one while the mask knows no filler."""
    sp, size = plain.case.sp, plain.shard_length
    held = [torch.nonzero((plain.peer_T == peer) & ~plain.is_padding)[:, 0] for peer in range(sp)]
    if len({len(tokens) for tokens in held}) == 1 or max(map(len, held)) > size:
        return
    at_T = torch.full((sp, size), -1)
    for peer, tokens in enumerate(held):
        at_T[peer, : len(tokens)] = tokens
    at_T = at_T.flatten()
    filler_T = at_T < 0

    def clear_fillers(qkv: QKV) -> QKV:
        q, k, v = (x.masked_fill(filler_T[:, None, None], 0) for x in qkv)
        return q, k, v

    yield (
        "pad-leak",
        "shards are filled up one by one, and the mask knows no filler",
        replace(
            plain,
            numbers_T=plain.numbers_T[at_T].masked_fill(filler_T, -1),
            ids_T=plain.ids_T[at_T].masked_fill(filler_T, plain.case.pad_id),
            positions_T=plain.positions_T[at_T],
            change_qkv=clear_fillers,
        ),
    )


def futures(plain: Pass) -> Variants:
    """Yield passes in which tokens see more than what came before them."""
    name, window = "future-leak", plain.case.window
    same_TT = plain.row_T[:, None] == plain.row_T[None, :]
    at_T = torch.arange(len(plain.row_T))
    back_TT = at_T[:, None] - at_T[None, :]
    ahead_TT = back_TT >= (-math.inf if window is None else 1 - window)
    inside_TT = back_TT < (math.inf if window is None else window)
    in_shard_TT = plain.peer_T[:, None] == plain.peer_T
    yield name, "a token sees its whole row", _with_mask(plain, same_TT)
    if window is not None:
        yield (
            name,
            "a token sees its whole row, as far back as the window",
            _with_mask(plain, same_TT & inside_TT),
        )
        yield (
            name,
            "a token sees as far ahead as back",
            _with_mask(plain, same_TT & inside_TT & ahead_TT),
        )
    yield (
        name,
        "a token sees the next one",
        _with_mask(plain, same_TT & (back_TT >= -1) & inside_TT),
    )
    yield name, "a token sees itself and what comes after it", _with_mask(plain, plain.seen_TT.mT)
    is_last_T = at_T % plain.shard_length == plain.shard_length - 1
    last_TT = is_last_T[:, None] & (back_TT == -1)
    yield (
        name,
        "the last token of a shard sees the next one",
        _with_mask(plain, plain.seen_TT | same_TT & last_TT),
    )
    yield (
        name,
        "a token sees all of its row that its rank holds",
        _with_mask(plain, plain.seen_TT | same_TT & in_shard_TT),
    )


def repeats(plain: Pass) -> Variants:
    """Yield passes in which the keys of one shard count more than once."""
    sp = plain.case.sp
    for peer in range(sp if sp > 1 else 0):
        for times in sorted({2, sp}):
            key_counts_T = torch.where(plain.peer_T == peer, float(times), plain.key_counts_T)
            count = "sp times" if times == sp else "twice"
            yield (
                "keys-repeated",
                f"those of shard {peer} count {count}",
                replace(plain, key_counts_T=key_counts_T),
            )


def scales(plain: Pass) -> Variants:
    """Yield passes whose scores are multiplied by another number."""
    case, right = plain.case, plain.scale
    hidden = case.heads * case.head_dim
    for how, scale in (
        ("by 1/sqrt(sp) too much", right / case.sp**0.5),
        ("by sqrt(sp) too much", right * case.sp**0.5),
        ("by 1/sp too much", right / case.sp),
        ("by sp too much", right * case.sp),
        ("by 1", 1.0),
        ("by 1/head_dim", 1 / case.head_dim),
        ("by 1/sqrt(hidden size)", hidden**-0.5),
        ("by 1/sqrt(heads)", case.heads**-0.5),
        ("twice", right**2),
    ):
        if not math.isclose(scale, right):
            yield "softmax-scale", f"scores are scaled {how}", replace(plain, scale=scale)


def _with_mask(plain: Pass, seen_TT: Tensor) -> Pass:
    return replace(plain, seen_TT=seen_TT)


ALL = (windows, rows, cuts, padding, fillers, futures, repeats, scales)
