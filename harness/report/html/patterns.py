"""Sentences on a map: what its wrong tokens have in common, and which tokens each rank holds."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from harness.case import Case
from harness.report.html.tokens import Cell, Layout
from harness.report.text import describe_positions

# The signs of tokens that are right, or not shown.
RIGHT = "0-"
MOST_STRETCHES = 40


def pattern(case: Case, layout: Layout, maps: Sequence[Mapping[str, Any]]) -> str:
    """Return what the wrong tokens of the first map have in common; empty if nothing."""
    if not maps:
        return ""
    lines = [[cell for cell in line.cells if cell.token >= 0] for line in layout.lines]
    cells = [cell for line in lines for cell in line]
    signs = maps[0]["signs"]
    wrong = {cell.token for cell in cells if signs[cell.token] not in RIGHT}
    if not wrong:
        return ""
    if wrong == _beyond_the_window(case):
        return f"All {len(wrong)} have more before them than the window of {case.window}"
    return _at_edges(cells, wrong) or _with_one_owner_or_row(case, layout, cells, wrong)


def _at_edges(cells: Sequence[Cell], wrong: set[int]) -> str:
    """Say that all wrong tokens stand before an edge between two ranks, or after one."""
    last = {cell.token for cell in cells if cell.is_edge}
    first = {after.token for cell, after in pairwise(cells) if cell.token in last}
    places = {"the last before another rank goes on": last, "the first after another rank": first}
    for place, tokens in places.items():
        if wrong <= tokens:
            rest = f", of {len(tokens)} such tokens"
            if wrong == tokens:
                rest = ", and none of these is right"
            return f"It is {place}" if len(wrong) == 1 else f"All {len(wrong)} are {place}{rest}"
    return ""


def _with_one_owner_or_row(
    case: Case, layout: Layout, cells: Sequence[Cell], wrong: set[int]
) -> str:
    """Say that one rank holds all wrong tokens, or what only their rows have in common."""
    if len(wrong) == 1:
        return ""
    owners = {cell.rank for cell in cells if cell.token in wrong}
    clauses = list(_in_rows(case, cells, wrong))
    if len(owners) == 1 and len(layout.ranks) > 1 and owners != {-1}:
        clauses.insert(0, f"are held by rank {owners.pop()}")
    if not clauses:
        return "Every token is wrong" if len(wrong) == len(cells) else ""
    return f"All {len(wrong)} {', and '.join(clauses)}"


def _in_rows(case: Case, cells: Sequence[Cell], wrong: set[int]) -> Iterator[str]:
    """Yield a clause on their rows, if there is one row or they share what no other row has."""
    rows = {cell.row for cell in cells if cell.token in wrong}
    others = set(range(len(case.rows))) - rows
    if not others:
        return
    features = {
        "padded on the left": padded_on_the_left(case),
        "cut by a shard edge": {cell.row for cell in cells if cell.is_edge},
    }
    if case.micro_batches == 1:
        behind = range(case.dp, len(case.rows))
        features["behind another row"] = set(behind)
        features["behind a row of one token"] = {
            row for row in behind if len(case.rows[row - case.dp]) == 1
        }
    shared = [name for name, having in features.items() if rows == having]
    which = f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, sorted(rows)))}"
    if len(rows) == 1 or shared:
        only = "the only one" if len(rows) == 1 else "the only ones"
        yield f"stand in {which}" + (f", {only} {' and '.join(shared)}" if shared else "")


def _beyond_the_window(case: Case) -> set[int]:
    """Return the tokens with more tokens before them than the sliding window shows."""
    if case.window is None:
        return set()
    starts = zip(case.offsets, case.rows, strict=False)
    return {start + position for start, row in starts for position in range(case.window, len(row))}


def padded_on_the_left(case: Case) -> set[int]:
    """Return the rows that have padding on their left in the padded batch."""
    longest = max(map(len, case.rows))
    return {
        number for number, row in enumerate(case.rows) if row.side == "left" and len(row) < longest
    }


def holdings(case: Case, picture: Mapping[str, Any] | None) -> list[tuple[int, str, int]]:
    """Return for each rank its number, the positions that it holds, and how many tokens."""
    pieces = picture["owners"] if picture else []
    ends = [*(first for first, _ in pieces[1:]), case.tokens]
    by_rank: dict[int, list[int]] = {}
    for (first, rank), end in zip(pieces, ends, strict=bool(pieces)):
        by_rank.setdefault(rank, []).extend(range(first, end))
    return [
        (rank, describe_positions(case, tokens, MOST_STRETCHES), len(tokens))
        for rank, tokens in sorted(by_rank.items())
    ]
