"""How many tokens a peer may hold of its replica's rows, with all their padding.

Rows are cut as one stream, or each by itself, or as a table; into one piece for each peer, or into
two where early tokens are to go with late ones.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from harness.case import Case
from harness.trace import Entry


def shares(case: Case, replica: int, nll: Entry) -> set[int]:
    """Every number that some layout explains, given who reported which token."""
    batches = list(_micro_batches(case, replica))
    lengths = [[len(case.rows[row]) for row in batch] for batch in batches]
    layouts = [[[sum(batch)] for batch in lengths], lengths]
    # A table pads so much that it could hide what is not cut at all; its columns tell.
    for starts in _starts(case, batches):
        widths = [
            max(map(sum, zip(start, length, strict=True)))
            for start, length in zip(starts, lengths, strict=True)
        ]
        if _cut_by_column(case, batches, starts, nll):
            layouts.append([[w] * len(b) for w, b in zip(widths, batches, strict=True)])
            # As wide as the whole batch, whatever is in a micro-batch of it.
            widest = max(*widths, *map(len, case.rows))
            layouts.append([[widest] * len(batch) for batch in batches])
    return {
        sum(-(-length // pieces) * pieces for batch in layout for length in batch) // case.sp
        for layout in layouts
        for pieces in (case.sp, 2 * case.sp)
    }


def _micro_batches(case: Case, replica: int) -> Iterator[list[int]]:
    mine = range(replica, len(case.rows), case.dp)
    each, larger = divmod(len(mine), case.micro_batches)
    rows = iter(mine)
    for number in range(case.micro_batches):
        yield list(islice(rows, each + (number < larger)))


def _starts(case: Case, batches: list[list[int]]) -> Iterator[list[list[int]]]:
    """The column of each row's first token, for every way in which tables are padded."""
    rows = [[case.rows[row] for row in batch] for batch in batches]
    longest = [max(map(len, batch)) for batch in rows]
    behind = [[0] * len(batch) for batch in rows]
    before = [[w - len(row) for row in batch] for w, batch in zip(longest, rows, strict=True)]
    either = [
        [start if row.side == "left" else 0 for start, row in zip(starts, batch, strict=True)]
        for starts, batch in zip(before, rows, strict=True)
    ]
    # Answers as they are generated begin in one column, behind prompts of any length.
    prompts = [[(*row.supervised(), 1)[0] for row in batch] for batch in rows]
    answers = [[max(batch) - prompt for prompt in batch] for batch in prompts]
    yield from (behind, before, either, answers)


def _cut_by_column(
    case: Case, batches: list[list[int]], starts: list[list[int]], nll: Entry
) -> bool:
    """Whether tokens of one column are on one rank."""
    if nll.tokens is None or nll.owners is None:
        return False
    owner_n = np.full(case.tokens, -1)
    owner_n[nll.tokens] = nll.owners
    for batch, columns in zip(batches, starts, strict=True):
        owners: dict[int, set[int]] = {}
        for row, start in zip(batch, columns, strict=True):
            for column, token in enumerate(range(*case.offsets[row : row + 2]), start):
                owners.setdefault(column, set()).add(int(owner_n[token]))
        if any(len(found - {-1}) > 1 for found in owners.values()):
            return False
    return True
