"""A failing case made smaller, pass by pass, without knowing how it was generated.

1. The passes (`shrink_passes.py`) propose changes to a case, those first that take away most.
   After a change is taken, the first pass begins again.
2. A change is taken if the case then fails in the same way, and only if its `size` is smaller.
   So every run ends.
3. The dtype never changes, since another dtype has other failures. A case whose ranks share a
   sequence keeps sp above 1.
4. A smaller failure may be another bug or mere rounding: `_is_another` refuses it.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from harness.case import Case, Dtype, InvalidCase
from harness.compare import Comparison
from harness.failure.shrink_passes import (
    PASSES,
    PLAIN_OPTIONS,
    PLAINEST_COLUMNS,
    plain_columns,
)
from harness.failure.signature import mark_of
from harness.trace import Kind, is_required

SHRINK_SECONDS = 60.0
# A smaller case whose error is smaller by more than this factor shows something else, for example
# only that the candidate computes in fp32. In fp32 a budget is so large that an error of all of a
# tensor is 1e5 budgets, and one that only rounding makes is a few.
MOST_ERROR_DROP: dict[Dtype, float] = {"fp64": 1e4, "fp32": 1e2, "bf16": 1e4, "fp16": 1e4}


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest failure found, how many cases were tried, and whether that is all there are."""

    smallest: Comparison
    tried: int
    finished: bool


def can_shrink(comparison: Comparison) -> bool:
    """Return whether the case can be why it failed; it cannot if the ranks did not even start."""
    fault = comparison.fault
    starts = fault is None or fault.kind not in (Kind.START, Kind.LAUNCHER)
    return comparison.verdict.failed and starts


def shrink(
    failing: Comparison, judge: Callable[[Case], Comparison], *, seconds: float = SHRINK_SECONDS
) -> Shrunk:
    """Take every change that still fails, until none does or the time is over."""
    deadline = time.monotonic() + seconds
    best, tried, mark = failing, {failing.case}, mark_of(failing)
    has_drawn = any(column.is_drawn for column in failing.inquiry.columns)
    while True:
        for case in smaller(best.case, has_drawn=has_drawn):
            if case in tried or case.sp == 1 < failing.case.sp:
                continue
            if time.monotonic() > deadline:
                return Shrunk(best, len(tried) - 1, finished=False)
            tried.add(case)
            comparison = judge(case)
            if mark_of(comparison).same_kind(mark) and not _is_another(failing, comparison):
                best = comparison
                break
        else:
            return Shrunk(best, len(tried) - 1, finished=True)


def _is_another(was: Comparison, now: Comparison) -> bool:
    """Return whether it is another failure: only misfits are left, or the error is tiny."""
    only_copies = (
        was.measured.first is not None
        and now.measured.first is None
        and bool(now.measured.misfits)
    )
    most = MOST_ERROR_DROP[was.case.dtype]
    return only_copies or _largest_error(now) * most < _largest_error(was)


def _largest_error(comparison: Comparison) -> float:
    """Return the largest error of the required keys, as a share of its budget."""
    return max(
        (result.used for result in comparison.measured.keys if is_required(result.key)),
        default=0.0,
    )


def smaller(case: Case, *, has_drawn: bool = False) -> Iterator[Case]:
    """Yield the valid cases of smaller size that one change of a pass leads to, pass by pass.

    `has_drawn` says that the candidate's recipe has drawn columns, which can be made plain.
    """
    for shrink_pass in (*PASSES, plain_columns) if has_drawn else PASSES:
        for change in shrink_pass(case):
            try:
                other = replace(case, **change)
            except InvalidCase:
                continue
            if size(other) < size(case):
                yield other


def size(case: Case) -> tuple[int, ...]:
    """Return the size of a case: tuples compare from left to right, so ranks count most."""
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
        sum(getattr(case, name) != value for name, value in PLAIN_OPTIONS.items()),
        len(case.settings),
        sum(row.side == "left" for row in case.rows),
        sum(_mask_size(row.mask) for row in case.rows),
        _ids_size(case),
        PLAINEST_COLUMNS.index(case.columns),
        case.seed,
    )


def _mask_size(mask: str) -> int:
    """Return a number that grows with how often a mask changes, and then with its zeros."""
    return len(list(groupby(mask))) * (len(mask) + 1) + mask.count("0")


def _ids_size(case: Case) -> int:
    """Return the sum of stated ids, or 0; the pad id as a real token counts most."""
    if case.ids is None:
        return 0
    ids = [token for row in case.ids for token in row]
    return 1 + sum(case.vocab if token == case.pad_id else token for token in ids)
