"""The lines of an explanation that show the columns of a recipe's batch."""

from collections.abc import Iterator, Sequence
from textwrap import shorten

from harness.case import Case
from harness.compare.columns import BatchColumn

# The room beside the label, on a terminal of 80 columns.
WIDTH = 70
# The rows of which numbers of tokens are shown.
MOST_ROWS = 4
# What stands where a column of targets has no number, and for what there is no room.
NO_TARGET, MORE = ".", " …"


def column_lines(case: Case, columns: Sequence[BatchColumn]) -> Iterator[str]:
    """Yield a line for a column of rows, and one for each of the first rows of any other."""
    for column in columns:
        name, rows = column.name, column.rows
        if all(len(row) == 1 for row in rows):
            yield _line(f"{name}, by row:", [*(row[0] for row in rows)], len(case.rows))
            continue
        for number, row in enumerate(rows[:MOST_ROWS]):
            yield _line(f"{name}, row {number}:", row, len(case.rows[number]))
        left = len(case.rows) - len(rows[:MOST_ROWS])
        if left:
            yield _line(f"{name}: {left} more row{'s' if left > 1 else ''}", (), 0)


def _line(head: str, texts: Sequence[str], count: int) -> str:
    """Return as many of these texts as there is room for."""
    line = " ".join((head, *(text or NO_TARGET for text in texts)))
    if len(texts) == count and len(line) <= WIDTH:
        return line
    return shorten(line, WIDTH - len(MORE), placeholder="") + MORE
