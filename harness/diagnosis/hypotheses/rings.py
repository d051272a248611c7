"""Attention that goes round a ring: a rank's queries meet the keys of one rank after another.

A ring deals each row out by itself, to itself in order ("in shards") or one piece from either end
("zigzag"), and fills it up behind until it can be. What a query should not see of a block of keys,
the ring leaves to how it cuts the block and to the kernel, which knows the block alone.

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
    """What the kernel is told of a block is not what holds in the row."""
    case, window = plain.case, plain.case.window
    widest = max(map(len, case.rows))
    for ranks, zigzag, alone in product(_rings(case.sp), (False, True), (True, False)):
        of = "each row" if alone else "each row, filled up to the longest,"
        rows = f"{of} is dealt {'zigzag' if zigzag else 'in shards'} over {ranks} ranks"
        whole = _filled(plain, 2 * case.sp, 0 if alone else widest)
        met_TT, back_TT, holder_T = _blocks(whole, ranks, zigzag)
        yield (
            "future-leak",
            f"no block of a ring is causal ({rows})",
            replace(whole, seen_TT=met_TT),
        )
        if window is None:
            continue
        seen_TT = met_TT & (back_TT >= 0) & (back_TT < window)
        of_holder_RT = holder_T == torch.arange(ranks)[:, None]
        met_TR, seen_TR = ((x[:, None] & of_holder_RT).any(-1) for x in (met_TT, seen_TT))
        blind_T1 = (met_TR & ~seen_TR).any(-1, keepdim=True)
        said = "a window is counted inside the blocks of a ring"
        yield "attention-cut", f"{said} ({rows})", replace(whole, seen_TT=seen_TT)
        yield (
            "attention-cut",
            f"{said}, and who sees nothing of one sees nothing ({rows})",
            replace(whole, seen_TT=seen_TT & ~blind_T1),
        )


def in_dealt_order(plain: Pass) -> Variants:
    """Tokens that lie as ranks have them, under the mask of the stream."""
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
        for said, seen_TT in (
            (f"tokens are dealt {how}, the mask is not", plain.seen_TT[place_T][:, place_T]),
            (f"tokens and rows are dealt {how}, the mask is not", same_TT & near_TT),
        ):
            yield "future-leak", said, replace(plain, seen_TT=seen_TT)


def _rings(sp: int) -> Iterator[int]:
    """How many ranks a ring may have; the others share its heads."""
    return (ranks for ranks in range(2, sp + 1) if sp % ranks == 0)


def _filled(plain: Pass, multiple: int, least: int) -> Pass:
    """Each row with padding behind it, so that it is so long or longer and can be dealt."""
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
        times_T=torch.ones(len(place), dtype=torch.float64),
    )


def _blocks(whole: Pass, ranks: int, zigzag: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Which keys each query meets, how far back the kernel takes each to be, and who holds it."""
    at_T = torch.arange(len(whole.row_T))
    width_T = whole.row_T.bincount()[whole.row_T]
    place_T = at_T - torch.searchsorted(whole.row_T, whole.row_T)
    size_T = width_T // (2 * ranks if zigzag else ranks)
    piece_T, local_T = place_T // size_T, place_T % size_T
    holder_T = torch.minimum(piece_T, 2 * ranks - 1 - piece_T) if zigzag else piece_T
    ahead_TT = holder_T[:, None] - holder_T
    met_TT = whole.row_T[:, None] == whole.row_T
    if not zigzag:
        return met_TT & (ahead_TT >= 0), local_T[:, None] - local_T, holder_T
    is_back_T = piece_T >= ranks
    local_T = local_T + is_back_T * size_T
    # A rank meets only the front piece of ranks before it, and all of ranks behind it.
    met_TT &= (ahead_TT == 0) | torch.where(ahead_TT > 0, ~is_back_T, is_back_T[:, None])
    # The last query stands at the last key, of which there are half as many.
    return met_TT, local_T[:, None] - local_T - (ahead_TT > 0) * size_T[:, None], holder_T


ALL = (by_blocks, in_dealt_order)
