"""Computes how many bytes ranks must send at least if a row is cut between them.

A query attends to keys of other ranks. Either those keys are sent to the query's rank, or the
query is sent to the keys and its result comes back. One of the two is sent in every layer,
whatever the layout and the collective. A layout may send more; backward is not counted.
"""

import numpy as np

from harness.case import Case
from harness.trace import Entry

BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}


def least_sent(case: Case, replica: int, nll: Entry, *, of_our_model: bool = True) -> int:
    """Return how many bytes the ranks of a replica must send, given the owners of `nll`.

    A candidate with a model of its own must send one number per key, or one per query. Returns
    zero if not every token has an owner.
    """
    if nll.owners is None or len(nll.owners) < case.tokens:
        return 0
    keys = queries = 0
    for row in range(replica, len(case.rows), case.dp):
        target = case.rows[row].mask.rfind("1")
        if target < 1:
            continue
        # Tokens after the last one that predicts a target need not be computed.
        owner_L = nll.owners[case.offsets[row] : case.offsets[row] + target]
        length = len(owner_L)
        window = case.window or length
        index = np.arange(length)
        # For each token, the bounds of the piece around it that its rank holds.
        cuts = np.flatnonzero(np.diff(owner_L)) + 1
        piece = np.searchsorted(cuts, index, side="right")
        begin, end = np.array([0, *cuts])[piece], np.array([*cuts, length])[piece]
        # A query is sent if the nearest earlier token of another rank is inside its window; a key,
        # if the nearest later token of another rank has it inside its window.
        queries += int(((begin > 0) & (index - begin + 1 < window)).sum())
        keys += int(((end < length) & (end - index < window)).sum())
    size = 2 if case.mixed else BYTES[case.dtype]
    if not of_our_model:
        return size * min(keys, queries)
    hidden = case.heads * case.head_dim
    # A rank may send hidden states instead of keys and values, which are computed from them.
    numbers_per_key, numbers_per_query = min(2 * case.kv_heads * case.head_dim, hidden), 2 * hidden
    return case.layers * size * min(keys * numbers_per_key, queries * numbers_per_query)


def holder_of_all(case: Case, replica: int, nll: Entry) -> int | None:
    """Return the rank that reported every token of a replica, or None if there is no such rank.

    Returns None also if all rows are short: then a correct layout may leave ranks empty.
    """
    rows = range(replica, len(case.rows), case.dp)
    has_long_row = max(len(case.rows[row]) for row in rows) >= 2 * case.sp
    if not has_long_row or nll.owners is None or len(nll.owners) < case.tokens:
        return None
    holders: set[int] = set()
    for row in rows:
        holders.update(map(int, nll.owners[case.offsets[row] : case.offsets[row + 1]]))
    return holders.pop() if len(holders) == 1 else None
