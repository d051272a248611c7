"""What ranks entered together, and where they part."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from operator import itemgetter

import msgspec

# The harness's own group, in which ranks wait for each other before a case.
GATE = "gate"
# Peers may give these different sizes, and no two ranks share the number of a message.
UNEVEN = ("all_to_all", "gather", "scatter")
# To these, only the root need give anything.
ROOTED = ("gather", "scatter")
MESSAGES = ("send", "recv")
# A group, a kind, a shape and a dtype if they are noted, and how many came in a row.
Row = tuple[str, str, str, str, int]


class Collective(msgspec.Struct, frozen=True, array_like=True):
    """One that a rank entered."""

    group: str
    sequence: int
    kind: str
    shape: str
    done: bool
    dtype: str = ""

    def __str__(self) -> str:
        shape = f", shape {self.shape}" if self.shape else ""
        return f"{self.kind} #{self.sequence} on {self.group}{shape}"


def group_name(what: str, ranks: list[int]) -> str:
    """What a process group is called, so that its members can be told from the log."""
    return f"{what}, ranks {','.join(map(str, ranks))}"


def members(group: str) -> set[int]:
    """The ranks of a group that the harness named; empty for a candidate's own."""
    listed = re.search(r", ranks ([\d,]+)$", group)
    return set(map(int, listed[1].split(","))) if listed else set()


def called(name: str, description: str) -> str:
    """What a group is called in records: those of a candidate often share one description."""
    return description if members(description) else f"{description} ({name})"


def one_by_one(orders: Mapping[int, Sequence[Row]]) -> dict[int, list[Collective]]:
    """What ranks entered one by one, by rank; nothing where all entered the same."""
    alike = {
        tuple((group.partition(", ranks ")[0], *run) for group, *run in order)
        for order in orders.values()
    }
    return {} if len(alike) == 1 else {rank: _each(order) for rank, order in orders.items()}


def _each(order: Sequence[Row]) -> list[Collective]:
    numbers = Counter[str]()
    collectives = []
    for group, kind, shape, dtype, count in order:
        for _ in range(count):
            numbers[group] += 1
            collectives.append(Collective(group, numbers[group], kind, shape, True, dtype))
    return collectives


def first_disagreement(logs: dict[int, list[Collective]], room: float = inf) -> str:
    """Where ranks of one group part: who entered what, and who never came; or nothing.

    A log with as many entries as it has room for may have forgotten others.

    First in the order of the lowest rank that entered one in dispute. Where every group is in
    step with itself, ranks may still enter what they share in different orders.
    """
    tables: dict[str, dict[int, dict[int, Collective]]] = {}
    for rank, entries in logs.items():
        for entry in entries:
            if _is_shared(entry):
                tables.setdefault(entry.group, {}).setdefault(rank, {})[entry.sequence] = entry
    for group, table in tables.items():
        for rank in members(group) & set(logs):
            # One that is full may have forgotten this rank's part in the group.
            if len(logs[rank]) < room:
                table.setdefault(rank, {})
    disputes = {group: _first_dispute(table) for group, table in tables.items()}
    for rank in sorted(logs):
        for entry in logs[rank]:
            sequence, said = disputes.get(entry.group, (0, ""))
            if said and entry.sequence == sequence:
                return f"collective #{sequence} on {entry.group}: {said}"
    return _first_circle(logs)


def _is_shared(entry: Collective) -> bool:
    """Whether the whole group takes part, and the candidate asked for it."""
    return not entry.group.startswith(GATE) and not entry.kind.startswith(MESSAGES)


def _first_circle(logs: dict[int, list[Collective]]) -> str:
    """Ranks of which each would wait for another one, if collectives waited for all who enter."""
    orders = {
        rank: {(entry.group, entry.sequence): entry for entry in entries if _is_shared(entry)}
        for rank, entries in sorted(logs.items())
    }
    enter = Counter(key for order in orders.values() for key in order)
    here: dict[tuple[str, int], list[int]] = {}
    moving = list(orders)
    while moving:
        rank = moving.pop()
        if orders[rank]:
            key = next(iter(orders[rank]))
            here.setdefault(key, []).append(rank)
            if len(here[key]) == enter[key]:
                moving += here[key]
                for each in here[key]:
                    del orders[each][key]
    waits_in = {rank: next(iter(order)) for rank, order in orders.items() if order}
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
    # Ranks keep only a tail each: compare from where all of them still remember.
    start = max(min(entries) for entries in table.values() if entries)
    stop = max(max(entries) for entries in table.values() if entries)
    for sequence in range(start, stop + 1):
        entered = {rank: entries.get(sequence) for rank, entries in sorted(table.items())}
        if len({_what(entry) for entry in entered.values()}) > 1:
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


def _what(entry: Collective | None) -> tuple[str, str, str] | None:
    if entry is None:
        return None
    return (
        entry.kind,
        "" if entry.kind.startswith(UNEVEN) else entry.shape,
        "" if entry.kind.startswith(ROOTED) else entry.dtype,
    )
