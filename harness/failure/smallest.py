"""The smallest case of a failure, seen once more where whoever replays it will see it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from harness.case import Case
from harness.compare import Comparison
from harness.failure.confirm import confirmed, on_fresh_ranks, with_what_it_needs
from harness.failure.sameness import mark_of
from harness.failure.sequence import shrink_sequence
from harness.failure.shrink import SHRINK_SECONDS, Shrunk, shrink
from harness.judge import verdict_only
from harness.ranks.pool import RankPool


def smallest(
    failure: Comparison,
    pool: RankPool,
    earlier: Sequence[Case] | None = None,
    seconds: float = SHRINK_SECONDS,
) -> Shrunk:
    """The failure on its smallest case and on fresh ranks.

    Where these do not show it and it is known what ranks ran `earlier`, with what it needs of
    that; else as it was.
    """
    shrunk = shrink(failure, _judge(failure, pool), seconds=seconds)
    small = confirmed(shrunk.smallest.case, failure, pool, failure.before)
    if small is None and earlier is not None:
        small = with_what_it_needs(failure, earlier, pool)
        if small.before:
            small = shrink_sequence(small, pool, seconds)
    if small is None or small.case == failure.case:
        return replace(shrunk, smallest=failure if small is None else small)
    return replace(shrunk, smallest=replace(small, larger=failure))


def fewest_layers(failure: Comparison, pool: RankPool) -> Comparison:
    """The same case with the fewest layers that still fail; itself where all are needed."""
    judge, mark = _judge(failure, pool), mark_of(failure)
    for layers in range(1, failure.case.layers):
        case = replace(failure.case, layers=layers)
        if mark_of(judge(case)).same_kind(mark):
            small = confirmed(case, failure, pool, failure.before)
            if small is not None:
                return small
    return failure


def _judge(failure: Comparison, pool: RankPool) -> Callable[[Case], Comparison]:
    """As it was seen: after the cases that its ranks must have run before."""
    told: dict[str, Any] = {
        "candidate": failure.candidate,
        "pool": pool,
        "against": failure.against,
    }
    if failure.before:
        return partial(on_fresh_ranks, before=failure.before, **told)
    return partial(verdict_only, **told)
