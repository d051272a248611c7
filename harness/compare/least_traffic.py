"""The least that ranks must send each other where a row is cut between them.

A query attends to keys of other ranks. Either those keys come to it, or it goes to them and what
it found there comes back; whatever the layout and the collective, one of the two crosses in every
layer. What a layout moves beyond that, and all of backward, is not asked for.
"""

import numpy as np

from harness.case import Case
from harness.trace import Entry

BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}


def least_sent(case: Case, replica: int, nll: Entry, *, of_our_model: bool = True) -> int:
    """How many bytes the ranks of a replica must send, given who reported which token.

    A candidate with another model sends at least one number for each token.
    """
    if nll.owners is None or len(nll.owners) < case.tokens:
        return 0
    keys = queries = 0
    for row in range(replica, len(case.rows), case.dp):
        target = case.rows[row].mask.rfind("1")
        if target < 1:
            continue
        # What comes after the last token that predicts a target need not be computed.
        owner_L = nll.owners[case.offsets[row] : case.offsets[row] + target]
        length = len(owner_L)
        window = case.window or length
        index = np.arange(length)
        # Where the piece of a row begins and ends that the token's rank holds around it.
        cuts = np.flatnonzero(np.diff(owner_L)) + 1
        piece = np.searchsorted(cuts, index, side="right")
        begin, end = np.array([0, *cuts])[piece], np.array([*cuts, length])[piece]
        # The nearest token of another rank, before it and after it.
        queries += int(((begin > 0) & (index - begin + 1 < window)).sum())
        keys += int(((end < length) & (end - index < window)).sum())
    size = 2 if case.mixed else BYTES[case.dtype]
    if not of_our_model:
        return size * min(keys, queries)
    hidden = case.heads * case.head_dim
    # Instead of keys and values, what they are made from may come.
    of_a_key, of_a_query = min(2 * case.kv_heads * case.head_dim, hidden), 2 * hidden
    return case.layers * size * min(keys * of_a_key, queries * of_a_query)


def holder_of_all(case: Case, replica: int, nll: Entry) -> int | None:
    """The rank that reported every token of a replica, though one row alone has some for each.

    A layout may leave ranks empty, and where rows are short it has to.
    """
    mine = range(replica, len(case.rows), case.dp)
    long = max(len(case.rows[row]) for row in mine) >= 2 * case.sp
    if not long or nll.owners is None or len(nll.owners) < case.tokens:
        return None
    holders: set[int] = set()
    for row in mine:
        holders.update(map(int, nll.owners[case.offsets[row] : case.offsets[row + 1]]))
    return holders.pop() if len(holders) == 1 else None
