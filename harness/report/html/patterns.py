"""What the wrong tokens of a map have in common, and which tokens a rank holds."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from harness.case import Case
from harness.report.html.tokens import Cell, Layout
from harness.report.text import places

RIGHT = "0-"
MOST_STRETCHES = 40


def pattern(case: Case, layout: Layout, maps: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on the first map; nothing where its wrong tokens have nothing in common."""
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
    return _at_edges(cells, wrong) or _shared(case, layout, cells, wrong)


def _at_edges(cells: Sequence[Cell], wrong: set[int]) -> str:
    """Where they stand just before or behind a place where another rank goes on."""
    ends = {cell.token for cell in cells if cell.edge}
    begins = {after.token for cell, after in pairwise(cells) if cell.token in ends}
    places = {"the last before another rank goes on": ends, "the first after another rank": begins}
    for place, such in places.items():
        if wrong <= such:
            many = f"All {len(wrong)} are {place}{_all(wrong, such)}"
            return f"It is {place}" if len(wrong) == 1 else many
    return ""


def _shared(case: Case, layout: Layout, cells: Sequence[Cell], wrong: set[int]) -> str:
    """Whose they are, or of which rows."""
    if len(wrong) == 1:
        return ""
    held = {cell.rank for cell in cells if cell.token in wrong}
    told = list(_rows(case, cells, wrong))
    if len(held) == 1 and len(layout.ranks) > 1 and held != {-1}:
        told.insert(0, f"are held by rank {held.pop()}")
    if not told:
        return "Every token is wrong" if len(wrong) == len(cells) else ""
    return f"All {len(wrong)} {', and '.join(told)}"


def _all(wrong: set[int], such: set[int]) -> str:
    return ", and none of these is right" if wrong == such else f", of {len(such)} such tokens"


def _rows(case: Case, cells: Sequence[Cell], wrong: set[int]) -> Iterator[str]:
    """What their rows have in common and others have not, if anything."""
    rows = {cell.row for cell in cells if cell.token in wrong}
    others = set(range(len(case.rows))) - rows
    if not others:
        return
    features = {
        "padded on the left": padded_on_the_left(case),
        "cut by a shard edge": {cell.row for cell in cells if cell.edge},
    }
    if case.micro_batches == 1:
        behind = range(case.dp, len(case.rows))
        features["behind another row"] = set(behind)
        features["behind a row of one token"] = {
            row for row in behind if len(case.rows[row - case.dp]) == 1
        }
    shared = [name for name, such in features.items() if rows == such]
    which = f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, sorted(rows)))}"
    if len(rows) == 1 or shared:
        only = "the only one" if len(rows) == 1 else "the only ones"
        yield f"stand in {which}" + (f", {only} {' and '.join(shared)}" if shared else "")


def _beyond_the_window(case: Case) -> set[int]:
    if case.window is None:
        return set()
    starts = zip(case.offsets, case.rows, strict=False)
    return {start + position for start, row in starts for position in range(case.window, len(row))}


def padded_on_the_left(case: Case) -> set[int]:
    """The rows before which there is padding in a padded batch of them all."""
    longest = max(map(len, case.rows))
    return {
        number for number, row in enumerate(case.rows) if row.side == "left" and len(row) < longest
    }


def holdings(case: Case, picture: Mapping[str, Any] | None) -> list[tuple[int, str, int]]:
    """By rank: what it holds of the rows, and how many tokens."""
    pieces = picture["owners"] if picture else []
    ends = [*(first for first, _ in pieces[1:]), case.tokens]
    of_rank: dict[int, list[int]] = {}
    for (first, rank), end in zip(pieces, ends, strict=bool(pieces)):
        of_rank.setdefault(rank, []).extend(range(first, end))
    return [
        (rank, places(case, tokens, MOST_STRETCHES), len(tokens))
        for rank, tokens in sorted(of_rank.items())
    ]
