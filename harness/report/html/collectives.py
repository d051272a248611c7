"""What ranks entered, as a diagram: down goes a line for each rank, across one for each entry."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COLUMN, ROW, MARGIN, TOP = 90, 26, 330, 30
_ENTRY = re.compile(
    r"(?P<what>.+?) #(?P<number>\d+) on (?P<group>.+?), shape (?P<shape>.*?)(?P<open>, not done)?$"
)


@dataclass(frozen=True, slots=True)
class Entered:
    """One collective of one rank."""

    what: str
    shape: str
    done: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One collective, and who entered it."""

    name: str
    y: int
    # By the place of a rank in the diagram; nothing where it never came.
    at: tuple[Entered | None, ...]
    parted: bool

    @property
    def span(self) -> tuple[int, int]:
        here = [place for place, each in enumerate(self.at) if each]
        return MARGIN + min(here) * COLUMN, MARGIN + max(here) * COLUMN


@dataclass(frozen=True, slots=True)
class Diagram:
    """All of them, the oldest on top."""

    ranks: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def width(self) -> int:
        return MARGIN + COLUMN * len(self.ranks)

    @property
    def height(self) -> int:
        return TOP + ROW * (len(self.steps) + 1)


def diagram(collectives: Mapping[str, Sequence[str]]) -> Diagram | None:
    """Of the last that each rank entered; nothing where nobody knows."""
    ranks = tuple(sorted(collectives, key=_number))
    read = {rank: dict(filter(None, map(_read, collectives[rank]))) for rank in ranks}
    order: list[str] = []
    for entries in read.values():
        after = 0
        for key in entries:
            if key in order:
                after = order.index(key) + 1
            else:
                order.insert(after, key)
                after += 1
    # What only some can still remember is behind all that the others entered.
    steps = tuple(
        _step(key, TOP + ROW * (place + 1), tuple(read[rank].get(key) for rank in ranks), ranks)
        for place, key in enumerate(order)
    )
    return Diagram(ranks, steps) if steps else None


def _step(key: str, y: int, at: tuple[Entered | None, ...], ranks: tuple[str, ...]) -> Step:
    members = re.search(r"ranks ([\d,]+)$", key)
    expected = set(members[1].split(",")) if members else set(ranks)
    missing = any(
        not each for rank, each in zip(ranks, at, strict=True) if rank in expected & set(ranks)
    )
    kinds = {(each.what, each.shape) for each in at if each}
    open_somewhere = any(each and not each.done for each in at)
    return Step(key, y, at, open_somewhere and (missing or len(kinds) > 1))


def _read(text: str) -> tuple[str, Entered] | None:
    found = _ENTRY.match(text)
    if found is None:
        return None
    return (
        f"#{found['number']} on {found['group']}",
        Entered(found["what"], found["shape"], found["open"] is None),
    )


def _number(rank: str) -> tuple[int, str]:
    return (int(rank), "") if rank.isdecimal() else (1 << 30, rank)
