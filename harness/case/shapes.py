"""What can be stated of all rows of a case, though no field of it says so.

    group=N         rows of each micro-batch come in groups of N, as many groups in each
    side=left       all rows are padded on this side
    targets=some    each row has a target
    targets=answer  its targets are all tokens that follow a prompt

A loss of pairs, or of several answers to one prompt, is defined for such rows only.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import get_args

from harness.case.case import Case
from harness.case.row import Row, Side

MOST_IN_GROUP = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """One statement about the rows of a case."""

    # All values that can be stated.
    values: tuple[str, ...]
    # Whether the statement with this value is true of a case.
    holds: Callable[[Case, str], bool]
    # Returns a case like the given one of which it is true.
    given: Callable[[Case, str], Case]


def _is_grouped(case: Case, size: str) -> bool:
    return len(case.rows) % (int(size) * case.micro_batches * case.dp) == 0


def _grouped(case: Case, size: str) -> Case:
    """Leave out the rows of the last groups, or repeat rows until there is one group."""
    least = int(size) * case.micro_batches * case.dp
    origins = [n % len(case.rows) for n in range(max(least, len(case.rows) // least * least))]
    ids = case.ids and tuple(case.ids[n] for n in origins)
    return replace(case, rows=tuple(case.rows[n] for n in origins), ids=ids)


def _has_side(case: Case, side: str) -> bool:
    return all(row.side == side for row in case.rows)


def _on_side(case: Case, side: str) -> Case:
    (valid,) = (known for known in get_args(Side) if known == side)
    return replace(case, rows=tuple(replace(row, side=valid) for row in case.rows))


def _has_targets(case: Case, which: str) -> bool:
    return all(row.supervised() and (which == "some" or _is_answer(row)) for row in case.rows)


def _is_answer(row: Row) -> bool:
    targets = row.supervised()
    return len(targets) == len(row) - targets[0]


def _with_targets(case: Case, which: str) -> Case:
    """Make the last token a target where there is none, and for an answer all that follow."""
    rows = tuple(_with_target(row, which) for row in case.rows)
    keeps_lengths = [*map(len, rows)] == [*map(len, case.rows)]
    return replace(case, rows=rows, ids=case.ids if keeps_lengths else None)


def _with_target(row: Row, which: str) -> Row:
    if not row.supervised():
        # A row of one token gets another.
        row = replace(row, mask=f"{row.mask[:-1] or row.mask}1")
    if which == "answer":
        start = row.supervised()[0]
        row = replace(row, mask=f"{row.mask[:start]}{'1' * (len(row) - start)}")
    return row


SHAPES = {
    "group": Shape(tuple(map(str, range(1, MOST_IN_GROUP + 1))), _is_grouped, _grouped),
    "side": Shape(get_args(Side), _has_side, _on_side),
    "targets": Shape(("some", "answer"), _has_targets, _with_targets),
}
