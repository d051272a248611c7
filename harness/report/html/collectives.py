"""The diagram of collectives: a column for each rank, a line for each collective that one entered.

The first line on which ranks part is marked: one of the group never entered it, or with another
call or shape. That is usually where a hang begins.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.watch.collectives import MESSAGES, UNEVEN

COLUMN, ROW, MARGIN, TOP = 110, 26, 330, 30
# The additional height of the line where ranks part: the call of each rank stands below its dot.
CALL_HEIGHT = 18
_ENTRY = re.compile(
    r"(?P<call>.+?) #(?P<number>\d+) on (?P<group>.+?), shape (?P<shape>.*?)(?P<open>, not done)?$"
)


@dataclass(frozen=True, slots=True)
class Entered:
    """One collective as one rank entered it."""

    call: str
    shape: str
    is_done: bool

    @property
    def common(self) -> tuple[str, str]:
        """The values that all ranks must share: the call, and the shape unless it may differ."""
        return self.call, "" if self.call.startswith(UNEVEN) else self.shape


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the diagram: a collective, and how each rank entered it."""

    name: str
    y: int
    # By column; None for a rank that never entered it.
    entries: tuple[Entered | None, ...]
    # Whether this is where ranks part first.
    is_parting: bool

    @property
    def span(self) -> tuple[int, int]:
        """The x of the first and of the last rank that entered it."""
        columns = [column for column, entry in enumerate(self.entries) if entry]
        return MARGIN + min(columns) * COLUMN, MARGIN + max(columns) * COLUMN


@dataclass(frozen=True, slots=True)
class Diagram:
    """The lines of all collectives, the oldest on top."""

    ranks: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def width(self) -> int:
        return MARGIN + COLUMN * len(self.ranks)

    @property
    def height(self) -> int:
        return TOP + ROW * (len(self.steps) + 1) + CALL_HEIGHT

    def x(self, column: int) -> int:
        return MARGIN + column * COLUMN


def diagram(collectives: Mapping[str, Sequence[str]]) -> Diagram | None:
    """Return the diagram of the last collectives of each rank; None if none is known."""
    ranks = tuple(sorted(collectives, key=_by_number))
    by_rank = {rank: dict(filter(None, map(_parse, collectives[rank]))) for rank in ranks}
    order: list[str] = []
    for entered in by_rank.values():
        after = 0
        for key in entered:
            if key in order:
                after = order.index(key) + 1
            else:
                order.insert(after, key)
                after += 1
    steps: list[Step] = []
    y, have_parted = TOP, False
    for key in order:
        entries = tuple(by_rank[rank].get(key) for rank in ranks)
        # Differences after the first one only follow from it.
        is_parting = not have_parted and _is_parting(key, entries, by_rank)
        y += ROW
        steps.append(Step(key, y, entries, is_parting))
        have_parted = have_parted or is_parting
        y += CALL_HEIGHT if is_parting else 0
    return Diagram(ranks, tuple(steps)) if steps else None


def _is_parting(
    key: str, entries: tuple[Entered | None, ...], by_rank: Mapping[str, Mapping[str, Entered]]
) -> bool:
    """Return whether a rank of the group never entered it, or entered something else."""
    if any(entry.call.startswith(MESSAGES) for entry in entries if entry):
        # Each rank numbers its messages itself, so these numbers cannot be compared.
        return False
    number, group = _number_and_group(key)
    members = re.search(r"ranks ([\d,]+)$", group)
    expected = set(members[1].split(",")) if members else set(by_rank)
    for rank in expected & set(by_rank):
        seen = [_number_and_group(other_key) for other_key in by_rank[rank]]
        # Only the last entries of a rank are known, so one with a lower number may be forgotten.
        if number > max((other for other, other_group in seen if other_group == group), default=0):
            return True
    return len({entry.common for entry in entries if entry}) > 1


def _number_and_group(key: str) -> tuple[int, str]:
    number, group = key.removeprefix("#").split(" on ", 1)
    return int(number), group


def _parse(text: str) -> tuple[str, Entered] | None:
    """Return the key and the entry of a line in a rank's list of collectives, if it is one."""
    found = _ENTRY.match(text)
    if found is None:
        return None
    return (
        f"#{found['number']} on {found['group']}",
        Entered(found["call"], found["shape"], found["open"] is None),
    )


def _by_number(rank: str) -> tuple[int, str]:
    """Return the sort key of a rank; what is no number comes last."""
    return (int(rank), "") if rank.isdecimal() else (1 << 30, rank)
