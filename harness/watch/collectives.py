"""Compare the collectives that ranks entered, and find where they part."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from operator import itemgetter

import msgspec

# The harness's own group, in which ranks wait for each other before a case.
GATE = "gate"
# Ranks may give different sizes to these kinds.
UNEVEN = ("all_to_all", "gather", "scatter")
# Only the root has to give anything to these kinds.
ROOTED = ("gather", "scatter")
# Messages between two ranks, whose numbers no two ranks share.
MESSAGES = ("send", "recv")
# Group, kind, shape and dtype ("" if they are not noted), and how many came in a row.
Row = tuple[str, str, str, str, int]


class Collective(msgspec.Struct, frozen=True, array_like=True):
    """A collective that a rank entered."""

    group: str
    sequence: int
    kind: str
    shape: str
    done: bool
    dtype: str = ""

    def __str__(self) -> str:
        shape = f", shape {self.shape}" if self.shape else ""
        return f"{self.kind} #{self.sequence} on {self.group}{shape}"


def group_name(purpose: str, ranks: list[int]) -> str:
    """Return the description of a process group, from which `members` reads its ranks."""
    return f"{purpose}, ranks {','.join(map(str, ranks))}"


def members(group: str) -> set[int]:
    """Return the ranks of a group that the harness named; no ranks for a candidate's own group."""
    listed = re.search(r", ranks ([\d,]+)$", group)
    return set(map(int, listed[1].split(","))) if listed else set()


def display_name(name: str, description: str) -> str:
    """Return what a group is called in records: a candidate's groups often share a description."""
    return description if members(description) else f"{description} ({name})"


def expand_orders(orders: Mapping[int, Sequence[Row]]) -> dict[int, list[Collective]]:
    """Return, by rank, every collective one by one; or {} if all ranks entered the same."""
    distinct = {
        tuple((group.partition(", ranks ")[0], *rest) for group, *rest in order)
        for order in orders.values()
    }
    return {} if len(distinct) == 1 else {rank: _expand(order) for rank, order in orders.items()}


def _expand(order: Sequence[Row]) -> list[Collective]:
    numbers = Counter[str]()
    collectives = []
    for group, kind, shape, dtype, count in order:
        for _ in range(count):
            numbers[group] += 1
            collectives.append(Collective(group, numbers[group], kind, shape, True, dtype))
    return collectives


def first_disagreement(logs: dict[int, list[Collective]], room: float = inf) -> str:
    """Describe where ranks of a group part, by what each rank entered; or return "".

    A log with as many entries as it has `room` for may have lost older ones. The first
    disagreement is the first in the order of the lowest rank that entered a disputed collective.
    If every group agrees, ranks may still enter the groups that they share in different orders.
    """
    tables: dict[str, dict[int, dict[int, Collective]]] = {}
    for rank, entries in logs.items():
        for entry in entries:
            if _is_shared(entry):
                tables.setdefault(entry.group, {}).setdefault(rank, {})[entry.sequence] = entry
    for group, table in tables.items():
        for rank in members(group) & set(logs):
            # A full log may have lost this rank's part in the group.
            if len(logs[rank]) < room:
                table.setdefault(rank, {})
    disputes = {group: _first_dispute(table) for group, table in tables.items()}
    for rank in sorted(logs):
        for entry in logs[rank]:
            sequence, description = disputes.get(entry.group, (0, ""))
            if description and entry.sequence == sequence:
                return f"collective #{sequence} on {entry.group}: {description}"
    return _first_circle(logs)


def _is_shared(entry: Collective) -> bool:
    """Whether the whole group takes part, and the candidate asked for it."""
    return not entry.group.startswith(GATE) and not entry.kind.startswith(MESSAGES)


def _first_circle(logs: dict[int, list[Collective]]) -> str:
    """Name the ranks that would wait in a circle if every collective were blocking."""
    orders = {
        rank: {(entry.group, entry.sequence): entry for entry in entries if _is_shared(entry)}
        for rank, entries in sorted(logs.items())
    }
    expected = Counter(key for order in orders.values() for key in order)
    arrived: dict[tuple[str, int], list[int]] = {}
    # Let ranks enter one collective after the other, until all are through or all wait.
    moving = list(orders)
    while moving:
        rank = moving.pop()
        if orders[rank]:
            key = next(iter(orders[rank]))
            arrived.setdefault(key, []).append(rank)
            if len(arrived[key]) == expected[key]:
                moving += arrived[key]
                for each in arrived[key]:
                    del orders[each][key]
    waits_in = {rank: next(iter(order)) for rank, order in orders.items() if order}
    # Go from each waiting rank to one that it waits for, until a rank comes again.
    way = [*waits_in][:1]
    while way and way[-1] not in way[:-1]:
        key = waits_in[way[-1]]
        way.append(next(r for r, own in waits_in.items() if key in orders[r] and own != key))
    circle = way[way.index(way[-1]) :] if way else []
    return "; ".join(
        f"rank {rank} entered {orders[rank][waits_in[rank]]} "
        f"before {orders[rank][waits_in[other]]}"
        for other, rank in sorted(pairwise(circle), key=itemgetter(1))
    )


def _first_dispute(table: dict[int, dict[int, Collective]]) -> tuple[int, str]:
    """Return the first number at which ranks of a group differ, and how; or 0 and ""."""
    # Each log has only the last entries: begin where all of them have some.
    start = max(min(entries) for entries in table.values() if entries)
    stop = max(max(entries) for entries in table.values() if entries)
    for sequence in range(start, stop + 1):
        entered = {rank: entries.get(sequence) for rank, entries in sorted(table.items())}
        if len({_comparable(entry) for entry in entered.values()}) > 1:
            alike = len({entry and (entry.kind, entry.shape) for entry in entered.values()}) == 1
            return sequence, "; ".join(
                f"rank {rank} entered {entry.kind}"
                f"{f' of shape {entry.shape}' if entry.shape else ''}"
                f"{f' in {entry.dtype}' if alike else ''}"
                if entry
                else f"rank {rank} never came"
                for rank, entry in entered.items()
            )
    return 0, ""


def _comparable(entry: Collective | None) -> tuple[str, str, str] | None:
    """Return what all ranks of a group must have in common."""
    if entry is None:
        return None
    return (
        entry.kind,
        "" if entry.kind.startswith(UNEVEN) else entry.shape,
        "" if entry.kind.startswith(ROOTED) else entry.dtype,
    )
