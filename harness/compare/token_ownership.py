"""How many tokens a peer may hold of its replica's rows, with all their padding.

Rows are cut as one stream, or each by itself, or as a table; into one piece for each peer, or into
two where early tokens are to go with late ones.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice

from harness.case import Case, Row
from harness.trace import Entry

# The column of each row's first token, in one table.
Starts = Callable[[Sequence[Row]], list[int]]


def shares(case: Case, replica: int, nll: Entry) -> set[int]:
    """Every number that some layout explains, given who reported which token."""
    batches = list(_micro_batches(case, replica))
    rows = [[case.rows[row] for row in batch] for batch in batches]
    lengths = [[len(row) for row in batch] for batch in rows]
    layouts = [[[sum(batch)] for batch in lengths], lengths]
    # A table pads so much that it could hide what is not cut at all; its columns tell.
    for starts in (_behind, _before, _either, _answers):
        if _cut_by_column(case, batches, starts, nll):
            layouts.append([[_width(batch, starts)] * len(batch) for batch in rows])
            # As wide as the whole batch, whatever is in a micro-batch of it.
            layouts.append([[_width(case.rows, starts)] * len(batch) for batch in rows])
    return {
        sum(-(-length // pieces) * pieces for batch in layout for length in batch) // case.sp
        for layout in layouts
        for pieces in (case.sp, 2 * case.sp)
    }


def is_cut_evenly(case: Case, replica: int, nll: Entry, held: int) -> bool:
    """Whether who reported what fits streams of any one length, of which each peer holds so much.

    Packed to a fixed length, a stream may be mostly padding. A peer that computes all of a stream
    and reports a part of it does not fit: all of the stream is then the piece of the first.
    """
    batches = list(_micro_batches(case, replica))
    each, left = divmod(held, len(batches))
    if left or not each or nll.tokens is None or nll.owners is None:
        return False
    peers = nll.owners - replica * case.sp
    peer_n = dict(zip(nll.tokens.tolist(), peers.tolist(), strict=True))
    streams = [
        [token for row in batch for token in range(*case.offsets[row : row + 2])]
        for batch in batches
    ]
    by_pieces = {1: [*range(case.sp)]}
    # Otherwise a rank with places for the whole stream looks like one whose late piece is padding.
    if each % 2 == 0 and each < max(map(len, streams)):
        by_pieces[2] = [*range(case.sp), *reversed(range(case.sp))]
    return any(
        all(
            len(stream) <= each * case.sp
            and all(
                dealt[place * pieces // each] == peer_n.get(token, dealt[place * pieces // each])
                for place, token in enumerate(stream)
            )
            for stream in streams
        )
        for pieces, dealt in by_pieces.items()
    )


def _micro_batches(case: Case, replica: int) -> Iterator[list[int]]:
    mine = range(replica, len(case.rows), case.dp)
    each, larger = divmod(len(mine), case.micro_batches)
    rows = iter(mine)
    for number in range(case.micro_batches):
        yield list(islice(rows, each + (number < larger)))


def _behind(rows: Sequence[Row]) -> list[int]:
    """Padding is behind all rows."""
    return [0] * len(rows)


def _before(rows: Sequence[Row]) -> list[int]:
    """Padding is before all rows."""
    return [max(map(len, rows)) - len(row) for row in rows]


def _either(rows: Sequence[Row]) -> list[int]:
    """Each row is padded on its own side."""
    both = zip(rows, _before(rows), strict=True)
    return [start if row.side == "left" else 0 for row, start in both]


def _answers(rows: Sequence[Row]) -> list[int]:
    """As they are generated: answers begin in one column, behind prompts of any length."""
    prompts = [(*row.supervised(), 1)[0] for row in rows]
    return [max(prompts) - prompt for prompt in prompts]


def _width(rows: Sequence[Row], starts: Starts) -> int:
    return max(start + len(row) for row, start in zip(rows, starts(rows), strict=True))


def _cut_by_column(case: Case, batches: list[list[int]], starts: Starts, nll: Entry) -> bool:
    """Whether tokens of a column are on one rank."""
    if nll.tokens is None or nll.owners is None:
        return False
    owner_n = dict(zip(nll.tokens.tolist(), nll.owners.tolist(), strict=True))
    for batch in batches:
        owners: dict[int, set[int]] = {}
        columns = starts([case.rows[row] for row in batch])
        for row, start in zip(batch, columns, strict=True):
            for column, token in enumerate(range(*case.offsets[row : row + 2]), start):
                if token in owner_n:
                    owners.setdefault(column, set()).add(owner_n[token])
        if any(len(found) > 1 for found in owners.values()):
            return False
        # With answers in a column a table may be so wide that half of it is all of another one:
        # a rank then has columns in no more than two runs.
        in_order = [next(iter(owners[column])) for column in sorted(owners)]
        runs = Counter(owner for owner, _ in groupby(in_order))
        if starts is _answers and max(runs.values(), default=0) > 2:
            return False
    return True
