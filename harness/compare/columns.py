"""The columns of a recipe's batch as short texts, for a reader; no verdict depends on them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from harness.case import Case
from harness.trace import COMPUTED, DRAWN, Entry, Trace

# A column has texts for so many tokens; pages write so many ids of tokens.
MOST_TEXTS = 512


@dataclass(frozen=True, slots=True)
class BatchColumn:
    """One column, for the first rows of a case: one text for a row, or one for each of its tokens.

    A text is empty where a column of targets has no number.
    """

    name: str
    # Whether it is drawn from the seed, or else computed by another model.
    is_drawn: bool
    rows: tuple[tuple[str, ...], ...]


def columns_of(case: Case, trace: Trace) -> tuple[BatchColumn, ...]:
    """Return the columns that plain training of a recipe has emitted."""
    return tuple(
        BatchColumn(key.removeprefix(kind), kind == DRAWN, tuple(_rows(case, trace[key])))
        for key in trace
        for kind in (DRAWN, COMPUTED)
        if key.startswith(kind)
    )


def _rows(case: Case, entry: Entry) -> Iterator[tuple[str, ...]]:
    assert entry.tokens is not None, "a column has a token for each number"
    numbers = dict(zip(entry.tokens.tolist(), entry.values.tolist(), strict=True))
    # A row's first token is no target, so only a column of rows has numbers of first tokens alone.
    is_of_rows = list(numbers) == list(case.offsets[:-1])
    room = MOST_TEXTS
    for start, stop in pairwise(case.offsets):
        tokens = range(start, min(start + 1 if is_of_rows else stop, start + room))
        if not tokens:
            return
        room -= len(tokens)
        yield tuple(f"{numbers[token]:.3g}" if token in numbers else "" for token in tokens)
