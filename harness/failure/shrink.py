"""A failing case made smaller step by step, without knowing how it was generated.

Each step takes something away or makes something plainer, and stays if the case then still fails
in the same way. The size of the case only goes down, so there is an end. The dtype stays: in
another one it would be another failure. So does that ranks share a sequence.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from harness.case import Case, InvalidCase, Row
from harness.compare import Comparison
from harness.failure.signature import mark_of
from harness.trace import Kind, is_required

SHRINK_SECONDS = 60.0
# An error that is smaller by so much is not the same one: what computes in fp32 strays in fp64.
MUCH = 1e4

# What a reader then need not think about.
PLAIN: dict[str, Any] = {
    "model": "llama",
    "window": None,
    "tied": False,
    "loss": "token-mean",
    "kernel": "eager",
    "checkpoint": False,
    "wrapper": "none",
    "sync": "last",
    "compiled": False,
    "mixed": False,
    "pad_id": 0,
    "nudge": 0.0,
}

Change = dict[str, Any]
# Rows that stay: the number of each, and the positions in it that stay.
Kept = Sequence[tuple[int, Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest failure found, how many cases were tried, and whether all that there were."""

    smallest: Comparison
    tried: int
    finished: bool


def worth_shrinking(comparison: Comparison) -> bool:
    """Whether the case made it fail; ranks that cannot even start are no case's."""
    fault = comparison.fault
    starts = fault is None or fault.kind not in (Kind.START, Kind.LAUNCHER)
    return comparison.verdict.failed and starts


def shrink(
    failing: Comparison, judge: Callable[[Case], Comparison], *, seconds: float = SHRINK_SECONDS
) -> Shrunk:
    """Greedily, until no single step helps or the time is over."""
    deadline = time.monotonic() + seconds
    best, seen, mark = failing, {failing.case}, mark_of(failing)
    while True:
        for case in smaller(best.case):
            if case in seen or case.sp == 1 < failing.case.sp:
                continue
            if time.monotonic() > deadline:
                return Shrunk(best, len(seen) - 1, finished=False)
            seen.add(case)
            comparison = judge(case)
            if mark_of(comparison).same_kind(mark) and not _another(failing, comparison):
                best = comparison
                break
        else:
            return Shrunk(best, len(seen) - 1, finished=True)


def _another(was: Comparison, now: Comparison) -> bool:
    """Whether a failure of less would be taken for this one: another bug, or rounding."""
    only_copies = was.first is not None and now.first is None and bool(now.misfits)
    return only_copies or _used(now) * MUCH < _used(was)


def _used(comparison: Comparison) -> float:
    """The largest share of a budget, in what is always judged."""
    return max((each.used for each in comparison.keys if is_required(each.key)), default=0.0)


def smaller(case: Case) -> Iterator[Case]:
    """Valid cases that are one step smaller; those first that lack most."""
    for change in _changes(case):
        try:
            other = replace(case, **change)
        except InvalidCase:
            continue
        if size(other) < size(case):
            yield other


def size(case: Case) -> tuple[int, ...]:
    """To be compared from left to right."""
    return (
        case.ranks,
        case.tokens,
        len(case.rows),
        case.steps,
        case.layers,
        case.micro_batches,
        case.heads,
        case.kv_heads,
        case.head_dim,
        case.vocab,
        sum(getattr(case, name) != value for name, value in PLAIN.items()),
        sum(row.side == "left" for row in case.rows),
        sum(_unrest(row.mask) for row in case.rows),
        _strangeness(case),
        case.seed,
    )


def _unrest(mask: str) -> int:
    """How often a mask changes, and then how much it leaves out."""
    return len(list(groupby(mask))) * (len(mask) + 1) + mask.count("0")


def _strangeness(case: Case) -> int:
    """How strange the stated ids are; the pad id as a real token is the strangest."""
    every = [token for row in case.ids or () for token in row]
    return 0 if case.ids is None else 1 + sum(case.vocab if i == case.pad_id else i for i in every)


def _changes(case: Case) -> Iterator[Change]:
    yield from _meshes(case)
    for kept in (*_fewer_rows(case), *_shorter_rows(case)):
        yield from _only(case, kept, case.dp)
    for name in ("steps", "layers", "micro_batches"):
        yield from ({name: number} for number in _down(getattr(case, name)))
    yield from _heads(case, case.sp)
    yield from ({"head_dim": number} for number in (2, case.head_dim // 4 * 2, case.head_dim - 2))
    for vocab in _down(case.vocab):
        ids = case.ids and tuple(tuple(i % vocab for i in row) for row in case.ids)
        yield {"vocab": vocab, "pad_id": case.pad_id % vocab, "ids": ids}
    yield PLAIN
    yield from ({name: value} for name, value in PLAIN.items())
    yield from _plainer_rows(case)
    yield from _plainer_ids(case)
    yield from ({"seed": seed} for seed in range(4))


def _meshes(case: Case) -> Iterator[Change]:
    for dp in _down(case.dp):
        yield {"dp": dp}
        # Or what one replica has.
        for first in range(case.dp):
            kept = [(r, range(len(case.rows[r]))) for r in range(first, len(case.rows), case.dp)]
            yield from ({**change, "dp": dp} for change in _only(case, kept, dp))
    for sp in _down(case.sp):
        yield {"sp": sp}
        yield from ({**change, "sp": sp} for change in _heads(case, sp))


def _heads(case: Case, sp: int) -> Iterator[Change]:
    for heads in sorted({sp, 2 * sp, *_down(case.heads)}):
        for kv_heads in sorted({1, sp, heads, *_down(case.kv_heads)}):
            if heads <= case.heads and kv_heads <= case.kv_heads:
                yield {"heads": heads, "kv_heads": kv_heads}


def _fewer_rows(case: Case) -> Iterator[Kept]:
    """Without so many rows in a row, as many for each replica."""
    whole = [(r, range(len(row))) for r, row in enumerate(case.rows)]
    for groups in _dropped(len(case.rows) // case.dp):
        gone = groups * case.dp
        for start in range(0, len(whole) - gone + 1, 1 if groups == 1 else case.dp):
            yield [*whole[:start], *whole[start + gone :]]


def _shorter_rows(case: Case) -> Iterator[Kept]:
    whole = [(r, range(len(row))) for r, row in enumerate(case.rows)]
    if any(len(row) > 1 for row in case.rows):
        yield [(r, every[: -(-len(every) // 2)]) for r, every in whole]
        yield [(r, every[len(every) // 2 :]) for r, every in whole]
    for r, every in whole:
        for count in _dropped(len(every)):
            for start in range(0, len(every) - count + 1, count):
                kept = (r, [*every[:start], *every[start + count :]])
                yield [*whole[:r], kept, *whole[r + 1 :]]


def _only(case: Case, kept: Kept, dp: int) -> Iterator[Change]:
    rows = tuple(
        Row("".join(case.rows[r].mask[t] for t in positions), case.rows[r].side)
        for r, positions in kept
    )
    ids = tuple(tuple(case.ids_of(r)[t] for t in positions) for r, positions in kept)
    micro_batches = max(1, min(case.micro_batches, len(rows) // dp))
    if case.ids is None:
        # Other ids then, as the seed gives them; or the ones that were there.
        yield {"rows": rows, "micro_batches": micro_batches}
    yield {"rows": rows, "micro_batches": micro_batches, "ids": ids}


def _plainer_rows(case: Case) -> Iterator[Change]:
    yield {"rows": tuple(Row("1" * len(row)) for row in case.rows)}
    for r, row in enumerate(case.rows):
        n = len(row)
        flipped = (f"{row.mask[:t]}{1 - int(row.mask[t])}{row.mask[t + 1 :]}" for t in range(n))
        plainer = [Row(row.mask)] + [Row(mask, row.side) for mask in ("1" * n, "0" * n, *flipped)]
        yield from ({"rows": (*case.rows[:r], one, *case.rows[r + 1 :])} for one in plainer)


def _plainer_ids(case: Case) -> Iterator[Change]:
    if case.ids is None:
        return
    yield {"ids": None}
    plain = 1 if case.pad_id == 0 else 0
    yield {"ids": tuple(tuple(plain for _ in row) for row in case.ids)}
    for r, row in enumerate(case.ids):
        for t in range(len(row)):
            changed = (*row[:t], plain, *row[t + 1 :])
            yield {"ids": (*case.ids[:r], changed, *case.ids[r + 1 :])}


def _down(number: int) -> list[int]:
    """Some smaller numbers, the smallest first."""
    return sorted(n for n in {1, 2, number // 2, number - 1} if 0 < n < number)


def _dropped(count: int) -> list[int]:
    """How many of so many might go, the most first; one must stay."""
    return sorted({count - 1, count // 2, count // 4, 1} - {0, count}, reverse=True)
