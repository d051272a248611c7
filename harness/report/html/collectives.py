"""What ranks entered, as a diagram: down goes a line for each rank, across one for each entry."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.watch.collectives import MESSAGES, UNEVEN

COLUMN, ROW, MARGIN, TOP = 110, 26, 330, 30
# Where ranks part, what each entered stands below its dot.
TOLD = 18
_ENTRY = re.compile(
    r"(?P<what>.+?) #(?P<number>\d+) on (?P<group>.+?), shape (?P<shape>.*?)(?P<open>, not done)?$"
)


@dataclass(frozen=True, slots=True)
class Entered:
    """One collective of one rank."""

    what: str
    shape: str
    done: bool

    @property
    def same(self) -> tuple[str, str]:
        """What has to be the same on all ranks."""
        return self.what, "" if self.what.startswith(UNEVEN) else self.shape


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
        return TOP + ROW * (len(self.steps) + 1) + TOLD

    def x(self, place: int) -> int:
        return MARGIN + place * COLUMN


def diagram(collectives: Mapping[str, Sequence[str]]) -> Diagram | None:
    """Draw the last that each rank entered; None if that is not known."""
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
    steps: list[Step] = []
    y, together = TOP, True
    for key in order:
        at = tuple(read[rank].get(key) for rank in ranks)
        parted = together and _parted(key, at, read)
        y += ROW
        steps.append(Step(key, y, at, parted))
        # What comes after follows from where they parted first.
        together = together and not parted
        y += TOLD if parted else 0
    return Diagram(ranks, tuple(steps)) if steps else None


def _parted(
    key: str, at: tuple[Entered | None, ...], read: Mapping[str, Mapping[str, Entered]]
) -> bool:
    """Whether one of a group never came, or with something else."""
    if any(each.what.startswith(MESSAGES) for each in at if each):
        # No two ranks share the number of a message.
        return False
    number, group = _number_and_group(key)
    members = re.search(r"ranks ([\d,]+)$", group)
    expected = set(members[1].split(",")) if members else set(read)
    for rank in expected & set(read):
        entered = [_number_and_group(each) for each in read[rank]]
        # What it entered long ago it may no longer remember.
        if number > max((its for its, other in entered if other == group), default=0):
            return True
    return len({each.same for each in at if each}) > 1


def _number_and_group(key: str) -> tuple[int, str]:
    number, group = key.removeprefix("#").split(" on ", 1)
    return int(number), group


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
