"""The token map: the rows of a batch as lines of cells, one for each token.

A layout places the cells and describes each token; it is the same for every tensor of the case.
A string of signs, one for each token, then colours the cells by how far off the tensor is there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.case import Case
from harness.report.html.numbers import in_cell, in_sentence

# How many cells fit on a line, and how wide each is: with text in them, and without.
LARGE, SMALL = (32, 26), (64, 12)
# A case of more tokens has no text in its cells.
MOST_WITH_TEXT = 512
# A page holds so many cells. Further maps are drawn by its script when a reader opens them.
MOST_CELLS = 17_000
# A margin for names on the left, and one above; below a line of cells, the strip that shows the
# owners of its tokens, and a gap.
MARGIN, TOP, STRIP, GAP = 64, 4, 5, 5

STRAY = {"token lost": "lost", "token owned twice": "twice"}
# Names of tensors in the description of a token; other tensors are named by their keys.
WORDS = {
    "ids": "id",
    "positions": "position",
    "labels": "label",
    "weight": "weight in the loss",
    "nll": "loss",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One token, or one position of padding, of which token and row are -1."""

    token: int
    row: int
    x: int
    y: int
    text: str
    rank: int
    description: str
    # Whether what it predicts does not count in the loss.
    is_masked: bool
    # "lost" if no rank reported it, "twice" if two did, else empty.
    stray: str = ""
    # Whether the next token of its row belongs to another rank.
    is_edge: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """Adjacent cells of a line that one rank holds."""

    x: int
    y: int
    width: int
    rank: int


@dataclass(slots=True)
class Line:
    """A row of the batch, or the part of one that fits on a line; only its first part is named."""

    name: str
    y: int
    cells: list[Cell] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)


@dataclass(slots=True)
class Layout:
    """Where each token of a case is drawn."""

    lines: list[Line]
    # The width and height of a cell.
    size: int
    width: int
    height: int
    tokens: int
    ranks: list[int]

    @property
    def has_text(self) -> bool:
        return self.tokens <= MOST_WITH_TEXT


def layout(
    case: Case, picture: Mapping[str, Any] | None, misfits: Iterable[Mapping[str, Any]] = ()
) -> Layout | None:
    """Return the layout of a case with what its picture knows of each token.

    Return None if the case has too many tokens to be drawn.
    """
    if case.tokens > MOST_CELLS:
        return None
    picture = picture or {"owners": [], "computed": [], "numbers": []}
    owner_n = _owners(case, picture["owners"])
    stray = {
        token: (STRAY[misfit["misfit"]], f"{misfit['key']}: {misfit['misfit']}")
        for misfit in misfits
        for token in misfit["tokens"]
    }
    numbers = {tensor["key"]: tensor for tensor in picture["numbers"]}
    per_line, size = LARGE if case.tokens <= MOST_WITH_TEXT else SMALL
    lines: list[Line] = []
    for row, start in enumerate(case.offsets[:-1]):
        ids = case.ids_of(row)
        for first in range(0, len(ids), per_line):
            line = _new_line(f"row {row}" if first == 0 else "", len(lines), size)
            lines.append(line)
            for position in range(first, min(first + per_line, len(ids))):
                token = start + position
                has_next = position + 1 < len(ids)
                owner = owner_n[token]
                kind, *misfit_lines = stray.get(token, ("",))
                known = _describe_token(row, position, token, ids[position], owner, numbers)
                line.cells.append(
                    Cell(
                        token=token,
                        row=row,
                        x=MARGIN + (position - first) * size,
                        y=line.y,
                        text=str(ids[position]),
                        rank=owner,
                        description="; ".join([known, *misfit_lines]),
                        stray=kind,
                        is_masked=not (has_next and case.rows[row].mask[position + 1] == "1"),
                        is_edge=has_next and owner_n[token + 1] != owner,
                    )
                )
            line.pieces = _pieces(line, size)
    if not stray:
        # If two ranks hold a token, it is not known which of their rows are padding.
        lines += _padding_lines(picture["computed"], owner_n, len(lines), size, per_line)
    ranks = sorted({cell.rank for line in lines for cell in line.cells} - {-1})
    width = MARGIN + size * max(len(line.cells) for line in lines) + 4
    height = TOP + len(lines) * (size + STRIP + GAP)
    return Layout(lines, size, width, height, case.tokens, ranks)


def _new_line(name: str, number: int, size: int) -> Line:
    return Line(name, TOP + number * (size + STRIP + GAP))


def _owners(case: Case, pieces: list[list[int]]) -> list[int]:
    """Return the rank of each token; a piece has its first token and its rank."""
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


def _padding_lines(
    computed: list[int], owner_n: list[int], line_number: int, size: int, most: int
) -> list[Line]:
    """Return a line of what ranks compute besides their tokens, cut to `most` cells, or none."""
    counts = [min(count - owner_n.count(rank), most) for rank, count in enumerate(computed)]
    ranks = [rank for rank, count in enumerate(counts) for _ in range(count)]
    if not ranks:
        return []
    line = _new_line("padding", line_number, size)
    for number, rank in enumerate(ranks[:most]):
        description = f"padding that rank {rank} computes"
        x = MARGIN + number * size
        line.cells.append(Cell(-1, -1, x, line.y, "", rank, description, is_masked=True))
    line.pieces = _pieces(line, size)
    return [line]


def _describe_token(
    row: int, position: int, token: int, vocabulary_id: int, owner: int, numbers: Mapping[str, Any]
) -> str:
    """Return where a token stands, who holds it, and what its tensors got and should have."""
    holder = f"rank {owner}" if owner >= 0 else "no rank reported it"
    parts = [f"row {row} position {position}, token {token}, id {vocabulary_id}, {holder}"]
    for key, tensor in numbers.items():
        expected = tensor["expected"][token]
        got = tensor["got"][token] if tensor["got"] else None
        if key == "ids" and got in (None, expected):
            continue
        if expected is None and got is None:
            continue
        word = WORDS.get(key, key)
        if got is None:
            parts.append(f"{word} not reported, expected {in_sentence(expected)}")
        elif got == expected:
            parts.append(f"{word} {in_sentence(expected)}")
        else:
            source = ", as gradients tell" if tensor["inferred"] else ""
            parts.append(f"{word} {in_sentence(got)}{source}, expected {in_sentence(expected)}")
    return "; ".join(parts)


def cell_texts(numbers: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return for each cell what a tensor got there, and what was expected if that differs."""
    if numbers is None or not numbers["got"]:
        return []
    return [
        (in_cell(got), in_cell(expected) if got != expected else "")
        for got, expected in zip(numbers["got"], numbers["expected"], strict=True)
    ]


def count_wrong(signs: str) -> str:
    """Return how many of the shown tokens are wrong, as a sentence."""
    wrong = sum(sign not in "0-" for sign in signs)
    return f"wrong at {wrong} of {len(signs) - signs.count('-')} tokens"
