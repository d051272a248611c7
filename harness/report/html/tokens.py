"""The token map: rows of tokens as lines of cells, cut where another rank goes on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.case import Case
from harness.report.html.numbers import brief, short

# Cells that fit on a line, and how wide each is: with its id written in it, or without.
LARGE, SMALL = (32, 26), (64, 12)
# So many tokens have their ids written.
MOST_WRITTEN = 512
# As many cells a page holds; of further maps the page's own script draws those that are opened.
MOST_CELLS = 17_000
MARGIN, TOP, STRIP, GAP = 64, 4, 5, 5

STRAY = {"token lost": "lost", "token owned twice": "twice"}
WORDS = {
    "ids": "id",
    "positions": "position",
    "labels": "label",
    "weight": "weight in the loss",
    "nll": "loss",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One token, or one place of padding."""

    token: int
    row: int
    x: int
    y: int
    # What is written in it.
    text: str
    rank: int
    says: str
    # The loss does not count what it predicts.
    masked: bool
    # By no rank reported, or by two: "lost", "twice" or nothing.
    stray: str = ""
    # Another rank goes on behind it.
    edge: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """What one rank holds of a line."""

    x: int
    y: int
    width: int
    rank: int


@dataclass(slots=True)
class Line:
    """A row of the batch, or as much of one as fits."""

    name: str
    y: int
    cells: list[Cell] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)


@dataclass(slots=True)
class Layout:
    """Where each token of a case is drawn; the same for every tensor."""

    lines: list[Line]
    size: int
    width: int
    height: int
    tokens: int
    ranks: list[int]

    @property
    def written(self) -> bool:
        return self.tokens <= MOST_WRITTEN


def layout(
    case: Case, picture: Mapping[str, Any] | None, misfits: Iterable[Mapping[str, Any]] = ()
) -> Layout | None:
    """Every token of a case, and what is known of each; nothing where there are too many."""
    if case.tokens > MOST_CELLS:
        return None
    picture = picture or {"owners": [], "computed": [], "numbers": []}
    owner_n = _owners(case, picture["owners"])
    stray = {
        token: (STRAY[each["misfit"]], f"{each['key']}: {each['misfit']}")
        for each in misfits
        for token in each["tokens"]
    }
    numbers = {each["key"]: each for each in picture["numbers"]}
    per_line, size = LARGE if case.tokens <= MOST_WRITTEN else SMALL
    lines: list[Line] = []
    for row, start in enumerate(case.offsets[:-1]):
        ids = case.ids_of(row)
        for first in range(0, len(ids), per_line):
            line = _line(f"row {row}" if first == 0 else "", len(lines), size)
            lines.append(line)
            for position in range(first, min(first + per_line, len(ids))):
                token = start + position
                follows = position + 1 < len(ids)
                owner = owner_n[token]
                line.cells.append(
                    Cell(
                        token=token,
                        row=row,
                        x=MARGIN + (position - first) * size,
                        y=line.y,
                        text=str(ids[position]),
                        rank=owner,
                        says="; ".join(
                            [
                                _says(row, position, token, ids[position], owner, numbers),
                                *stray.get(token, ("",))[1:],
                            ]
                        ),
                        stray=stray.get(token, ("",))[0],
                        masked=not (follows and case.rows[row].mask[position + 1] == "1"),
                        edge=follows and owner_n[token + 1] != owner,
                    )
                )
            line.pieces = _pieces(line, size)
    if not stray:
        # If two ranks hold a token, it is not known which of their rows are padding.
        lines += _padding(picture["computed"], owner_n, len(lines), size, per_line)
    ranks = sorted({cell.rank for line in lines for cell in line.cells} - {-1})
    width = MARGIN + size * max(len(line.cells) for line in lines) + 4
    height = TOP + len(lines) * (size + STRIP + GAP)
    return Layout(lines, size, width, height, case.tokens, ranks)


def _line(name: str, number: int, size: int) -> Line:
    return Line(name, TOP + number * (size + STRIP + GAP))


def _owners(case: Case, pieces: list[list[int]]) -> list[int]:
    starts = [*(first for first, _ in pieces), case.tokens]
    owner_n = [-1] * case.tokens
    for (first, rank), stop in zip(pieces, starts[1:], strict=True):
        owner_n[first:stop] = [rank] * (stop - first)
    return owner_n


def _pieces(line: Line, size: int) -> list[Piece]:
    pieces: list[Piece] = []
    for cell in line.cells:
        last = pieces[-1] if pieces else None
        if last and last.rank == cell.rank:
            pieces[-1] = Piece(last.x, last.y, last.width + size, last.rank)
        else:
            pieces.append(Piece(cell.x, cell.y + size + 1, size, cell.rank))
    return pieces


def _padding(
    computed: list[int], owner_n: list[int], above: int, size: int, most: int
) -> list[Line]:
    """What ranks computed besides their tokens, as far as it fits on a line."""
    left = [min(count - owner_n.count(rank), most) for rank, count in enumerate(computed)]
    pads = [rank for rank, count in enumerate(left) for _ in range(count)]
    if not pads:
        return []
    line = _line("padding", above, size)
    for number, rank in enumerate(pads[:most]):
        says = f"padding that rank {rank} computes"
        x = MARGIN + number * size
        line.cells.append(Cell(-1, -1, x, line.y, "", rank, says, masked=True))
    line.pieces = _pieces(line, size)
    return [line]


def _says(
    row: int, position: int, token: int, of_vocabulary: int, owner: int, numbers: Mapping[str, Any]
) -> str:
    held = f"rank {owner}" if owner >= 0 else "no rank reported it"
    parts = [f"row {row} position {position}, token {token}, id {of_vocabulary}, {held}"]
    for key, each in numbers.items():
        expected = each["expected"][token]
        got = each["got"][token] if each["got"] else None
        if key == "ids" and got in (None, expected):
            continue
        if expected is None and got is None:
            continue
        word = WORDS.get(key, key)
        if got is None:
            parts.append(f"{word} not reported, expected {brief(expected)}")
        elif got == expected:
            parts.append(f"{word} {brief(expected)}")
        else:
            how = ", as gradients tell" if each["inferred"] else ""
            parts.append(f"{word} {brief(got)}{how}, expected {brief(expected)}")
    return "; ".join(parts)


def written(numbers: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What stands in each cell: what came, and what was expected of it if that is wrong."""
    if numbers is None or not numbers["got"]:
        return []
    return [
        (short(got), short(expected) if got != expected else "")
        for got, expected in zip(numbers["got"], numbers["expected"], strict=True)
    ]


def counted(signs: str) -> str:
    """How many tokens a map has, and how many of them are wrong."""
    wrong = sum(sign not in "0-" for sign in signs)
    return f"wrong at {wrong} of {len(signs) - signs.count('-')} tokens"
