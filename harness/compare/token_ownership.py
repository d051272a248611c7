"""Decides whether a peer that computed as many tokens as its replica has still shared the work.

Padding can make one peer's part of the work as large as all real tokens. So a large part is
accepted if some layout explains it. Layouts cut the rows as one stream, or each row by itself, or
all rows as a table. They cut into one piece for each peer, or into two, so that each peer gets an
early piece and a late one.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice

from harness.case import Case, Row
from harness.trace import Entry

# Returns the column of each row's first token, in a table of these rows.
Alignment = Callable[[Sequence[Row]], list[int]]


def explained_shares(case: Case, replica: int, nll: Entry) -> set[int]:
    """Return every number of tokens that some layout gives to each peer.

    The owners of `nll` decide which layouts are possible.
    """
    batches = list(_micro_batches(case, replica))
    rows = [[case.rows[row] for row in batch] for batch in batches]
    lengths = [[len(row) for row in batch] for batch in rows]
    # The lengths that each layout cuts, by micro-batch.
    layouts = [[[sum(batch)] for batch in lengths], lengths]
    # A table has so much padding that it would explain a step that is not cut at all. So a table
    # counts only if the owners of tokens show that it was cut by its columns.
    for alignment in (_align_left, _align_right, _align_by_side, _align_answers):
        if _is_cut_by_column(case, batches, alignment, nll):
            layouts.append([[_width(batch, alignment)] * len(batch) for batch in rows])
            # The table of a micro-batch may be as wide as that of the whole batch.
            layouts.append([[_width(case.rows, alignment)] * len(batch) for batch in rows])
    return {
        sum(-(-length // pieces) * pieces for batch in layout for length in batch) // case.sp
        for layout in layouts
        for pieces in (case.sp, 2 * case.sp)
    }


def is_cut_evenly(case: Case, replica: int, nll: Entry, held: int) -> bool:
    """Return whether the owners of `nll` fit streams of one length, with `held` tokens per peer.

    A stream that is packed to a fixed length may be mostly padding. A peer that computes a whole
    stream and reports only a part of it does not fit: with pieces as large as the stream, all
    tokens would belong to the first peer.
    """
    batches = list(_micro_batches(case, replica))
    share, remainder = divmod(held, len(batches))
    if remainder or not share or nll.tokens is None or nll.owners is None:
        return False
    first_rank = replica * case.sp
    peer_n = dict(zip(nll.tokens.tolist(), (nll.owners - first_rank).tolist(), strict=True))
    streams = [
        [token for row in batch for token in range(*case.offsets[row : row + 2])]
        for batch in batches
    ]
    # The peer of each piece, in the order of the stream: one piece for each peer, or two.
    layouts = [[*range(case.sp)]]
    # A peer that computes the whole stream looks like one whose late piece is padding. So two
    # pieces are considered only if a peer has no room for the longest stream.
    if share % 2 == 0 and share < max(map(len, streams)):
        layouts.append([*range(case.sp), *reversed(range(case.sp))])
    room = share * case.sp
    return any(
        all(len(stream) <= room and _fits(stream, peers, room, peer_n) for stream in streams)
        for peers in layouts
    )


def _fits(stream: list[int], peers: list[int], room: int, peer_n: dict[int, int]) -> bool:
    """Return whether equal pieces of `room` places, dealt to these peers, have these owners."""
    size = room // len(peers)
    return all(
        peer_n.get(token) in (None, peers[place // size]) for place, token in enumerate(stream)
    )


def _micro_batches(case: Case, replica: int) -> Iterator[list[int]]:
    """Yield the rows of each micro-batch of a replica."""
    rows = range(replica, len(case.rows), case.dp)
    share, larger = divmod(len(rows), case.micro_batches)
    remaining = iter(rows)
    for number in range(case.micro_batches):
        yield list(islice(remaining, share + (number < larger)))


def _align_left(rows: Sequence[Row]) -> list[int]:
    return [0] * len(rows)


def _align_right(rows: Sequence[Row]) -> list[int]:
    return [max(map(len, rows)) - len(row) for row in rows]


def _align_by_side(rows: Sequence[Row]) -> list[int]:
    """Align each row by the side of its padding."""
    both = zip(rows, _align_right(rows), strict=True)
    return [start if row.side == "left" else 0 for row, start in both]


def _align_answers(rows: Sequence[Row]) -> list[int]:
    """Align all first targets in one column, as generated answers to prompts of any length are."""
    prompts = [(*row.supervised(), 1)[0] for row in rows]
    return [max(prompts) - prompt for prompt in prompts]


def _width(rows: Sequence[Row], alignment: Alignment) -> int:
    return max(start + len(row) for row, start in zip(rows, alignment(rows), strict=True))


def _is_cut_by_column(
    case: Case, batches: list[list[int]], alignment: Alignment, nll: Entry
) -> bool:
    """Return whether all reported tokens of each column have the same owner."""
    if nll.tokens is None or nll.owners is None:
        return False
    owner_n = dict(zip(nll.tokens.tolist(), nll.owners.tolist(), strict=True))
    for batch in batches:
        owners: dict[int, set[int]] = {}
        starts = alignment([case.rows[row] for row in batch])
        for row, start in zip(batch, starts, strict=True):
            for column, token in enumerate(range(*case.offsets[row : row + 2]), start):
                if token in owner_n:
                    owners.setdefault(column, set()).add(owner_n[token])
        if any(len(found) > 1 for found in owners.values()):
            return False
        # Aligned answers make a table so wide that its share may explain a step that computes a
        # narrower table whole. So the columns of a rank must also be in at most two runs.
        in_order = [next(iter(owners[column])) for column in sorted(owners)]
        runs = Counter(owner for owner, _ in groupby(in_order))
        if alignment is _align_answers and max(runs.values(), default=0) > 2:
            return False
    return True
