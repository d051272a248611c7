"""How many tokens a peer may hold of its replica's rows, with all their padding.

Rows are cut as one stream, or each by itself, or as a table; into one piece for each peer, or into
two where early tokens are to go with late ones.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from harness.case import Case
from harness.trace import Entry
from harness.trace.trace import Tokens


def shares(case: Case, replica: int, nll: Entry) -> set[int]:
    """Every number that some layout explains, given who reported which token."""
    batches = list(_micro_batches(case, replica))
    lengths = [[len(case.rows[row]) for row in batch] for batch in batches]
    layouts = [[[sum(batch)] for batch in lengths], lengths]
    # A table pads so much that it could hide what is not cut at all; its columns tell.
    if _cut_by_column(case, batches, nll):
        layouts.append([[max(batch)] * len(batch) for batch in lengths])
        # As wide as the whole batch, whatever is in a micro-batch of it.
        widest = max(map(len, case.rows))
        layouts.append([[widest] * len(batch) for batch in lengths])
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


def _cut_by_column(case: Case, batches: list[list[int]], nll: Entry) -> bool:
    """Whether tokens of one column are on one rank, with rows as they are padded or all alike.

    How wide the table is does not matter where rows stand at its left; where all stand at its
    right, neither.
    """
    if nll.tokens is None or nll.owners is None:
        return False
    owner_n: Tokens = np.full(case.tokens, -1)
    owner_n[nll.tokens] = nll.owners
    shifted = ({"left"}, set[str](), {"left", "right"})
    return any(_agree(case, batches, owner_n, sides) for sides in shifted)


def _agree(case: Case, batches: list[list[int]], owner_n: Tokens, shifted: set[str]) -> bool:
    for batch in batches:
        width = max(len(case.rows[row]) for row in batch)
        owners = np.full((len(batch), width), -1)
        for b, row in enumerate(batch):
            length = len(case.rows[row])
            start = width - length if case.rows[row].side in shifted else 0
            own = owner_n[case.offsets[row] : case.offsets[row + 1]]
            owners[b, start : start + length] = own
        highest = owners.max(0)
        if ((owners >= 0) & (owners != highest)).any():
            return False
    return True
