"""Ring attention with wrong masks: a rank's queries meet the keys of one rank after another.

A ring deals out each row by itself, in order ("in shards") or one piece from either end
("zigzag"), and pads the row at its end until it can be dealt. A ring hides keys from a query in
two ways: by how it cuts the block of keys, and by the mask that it gives the kernel, which knows
the block alone.

Legend: T tokens of a stream with the padding of its rows, R ranks of a ring.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from harness.diagnosis.forward import Pass, Variants
from harness.diagnosis.hypotheses.order import from_either_end


def by_blocks(plain: Pass) -> Variants:
    """Yield passes in which the mask of a block is not the mask of the row."""
    case, window = plain.case, plain.case.window
    widest = max(map(len, case.rows))
    for ranks, zigzag, alone in product(_ring_sizes(case.sp), (False, True), (True, False)):
        of = "each row" if alone else "each row, filled up to the longest,"
        rows = f"{of} is dealt {'zigzag' if zigzag else 'in shards'} over {ranks} ranks"
        padded = _with_padded_rows(plain, 2 * case.sp, 0 if alone else widest)
        met_TT, back_TT, holder_T = _blocks(padded, ranks, zigzag)
        yield (
            "future-leak",
            f"no block of a ring is causal ({rows})",
            replace(padded, seen_TT=met_TT),
        )
        if window is None:
            continue
        seen_TT = met_TT & (back_TT >= 0) & (back_TT < window)
        is_holder_RT = holder_T == torch.arange(ranks)[:, None]
        met_TR, seen_TR = ((x[:, None] & is_holder_RT).any(-1) for x in (met_TT, seen_TT))
        blind_T1 = (met_TR & ~seen_TR).any(-1, keepdim=True)
        how = "a window is counted inside the blocks of a ring"
        yield "attention-cut", f"{how} ({rows})", replace(padded, seen_TT=seen_TT)
        yield (
            "attention-cut",
            f"{how}, and who sees nothing of one sees nothing ({rows})",
            replace(padded, seen_TT=seen_TT & ~blind_T1),
        )


def in_dealt_order(plain: Pass) -> Variants:
    """Yield passes in which tokens are reordered between ranks and the mask is not."""
    length, sp, window = len(plain.ids_T), plain.case.sp, plain.case.window
    same_TT = plain.row_T[:, None] == plain.row_T
    for how, order_T in (
        ("from either end", from_either_end(length, sp)),
        ("in turn", torch.arange(length).view(-1, sp).T.flatten()),
        ("without padding", plain.peer_T.where(~plain.is_padding, sp).argsort(stable=True)),
    ):
        place_T = order_T.argsort()
        back_TT = place_T[:, None] - place_T
        near_TT = (back_TT >= 0) & (back_TT < (length if window is None else window))
        for description, seen_TT in (
            (f"tokens are dealt {how}, the mask is not", plain.seen_TT[place_T][:, place_T]),
            (f"tokens and rows are dealt {how}, the mask is not", same_TT & near_TT),
        ):
            yield "future-leak", description, replace(plain, seen_TT=seen_TT)


def _ring_sizes(sp: int) -> Iterator[int]:
    """Yield how many ranks a ring may have; the others share its heads."""
    return (ranks for ranks in range(2, sp + 1) if sp % ranks == 0)


def _with_padded_rows(plain: Pass, multiple: int, least: int) -> Pass:
    """Pad each row at its end to at least this length, and to a multiple."""
    case, spans = plain.case, plain.stream.spans
    place, row, position = [], [], []
    for i, span in enumerate(spans):
        length = span.stop - span.start
        width = max(length, least)
        pads = width - length + -width % multiple
        place += [*range(span.start, span.stop), *[-1] * pads]
        row += [i] * (length + pads)
        position += [*range(length), *[0] * pads]
    at_T = torch.tensor(place)
    pad_T = at_T < 0
    return replace(
        plain,
        numbers_T=plain.numbers_T[at_T].masked_fill(pad_T, -1),
        ids_T=plain.ids_T[at_T].masked_fill(pad_T, case.pad_id),
        positions_T=torch.tensor(position),
        row_T=torch.tensor(row),
        peer_T=plain.peer_T[at_T],
        key_counts_T=torch.ones(len(place), dtype=torch.float64),
    )


def _blocks(padded: Pass, ranks: int, zigzag: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return which keys each query meets, how far back the kernel places them, and their holders.

    The holder of a key is the rank of the ring that has it.
    """
    at_T = torch.arange(len(padded.row_T))
    width_T = padded.row_T.bincount()[padded.row_T]
    place_T = at_T - torch.searchsorted(padded.row_T, padded.row_T)
    size_T = width_T // (2 * ranks if zigzag else ranks)
    piece_T, local_T = place_T // size_T, place_T % size_T
    holder_T = torch.minimum(piece_T, 2 * ranks - 1 - piece_T) if zigzag else piece_T
    ahead_TT = holder_T[:, None] - holder_T
    met_TT = padded.row_T[:, None] == padded.row_T
    if not zigzag:
        return met_TT & (ahead_TT >= 0), local_T[:, None] - local_T, holder_T
    is_back_T = piece_T >= ranks
    local_T = local_T + is_back_T * size_T
    # A query meets only the front piece of a rank before its own. All keys of a rank behind meet
    # the queries of its back piece, and none those of its front piece.
    met_TT &= (ahead_TT == 0) | torch.where(ahead_TT > 0, ~is_back_T, is_back_T[:, None])
    # The kernel aligns the last query with the last key; with front pieces alone, keys are half as
    # many as queries.
    return met_TT, local_T[:, None] - local_T - (ahead_TT > 0) * size_T[:, None], holder_T


ALL = (by_blocks, in_dealt_order)
