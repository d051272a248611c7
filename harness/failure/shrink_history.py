"""A failure that needs what its ranks ran before it: as few cases as do, and small ones.

Each try costs a launch, since ranks that have run anything else may remember it. So the cases are
not shrunk step by step: the smallest pairs that may show it come first.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from harness.case import Case, InvalidCase, Row
from harness.compare import Comparison
from harness.failure.confirm import on_fresh_ranks, unless_they_ran
from harness.failure.shrink import PLAIN, Shrunk
from harness.failure.signature import mark_of
from harness.judge import Job, Session

# Judges a case after others on ranks of its own; nothing where it is not the failure any more.
Shows = Callable[[Sequence[Case], Case], Comparison | None]
Change = dict[str, Any]
# What a case has besides its tokens and where it runs.
SIMPLER: tuple[Change, ...] = (
    {**PLAIN, "layers": 1, "head_dim": 2, "vocab": 8, "pad_id": 0, "seed": 0},
    PLAIN,
    {"layers": 1},
    {"head_dim": 2},
    {"vocab": 8, "pad_id": 0},
    {"seed": 0},
)


def shrink_sequence(failure: Comparison, session: Session, seconds: float) -> Shrunk:
    """Fewer cases before it; and where one is enough, a small pair."""
    until, mark, tried = time.monotonic() + seconds, mark_of(failure), 0

    def shows(before: Sequence[Case], case: Case) -> Comparison | None:
        nonlocal tried
        if time.monotonic() > until:
            return None
        tried += 1
        seen = on_fresh_ranks(Job.again(failure, case), session, before)
        return seen if mark_of(seen).same_kind(mark) else None

    small = _fewest(failure, shows)
    if len(small.before) == 1:
        small = _simpler(_smallest_pair(small, shows), shows)
    finished = time.monotonic() <= until
    why = unless_they_ran(small.before)
    if not finished and len(small.before) > 1:
        why += "; fewer may do, but there was no time to try all of them"
    named = small.named(replace(failure.seen[0], why=why), *failure.seen[1:])
    return Shrunk(named, tried, finished=finished)


def _fewest(failure: Comparison, shows: Shows) -> Comparison:
    """Halves of what ran before, then less and less of it, as long as that is enough."""
    parts = 2
    while len(failure.before) > 1:
        before = failure.before
        length = -(-len(before) // parts)
        cuts = [(at, at + length) for at in range(0, len(before), length)]
        pieces = [before[start:stop] for start, stop in cuts]
        rests = [(*before[:start], *before[stop:]) for start, stop in cuts]
        tries = pieces if parts == 2 else [*pieces, *rests]
        seen = _first(shows(kept, failure.case) for kept in tries)
        if seen is not None:
            failure, parts = seen, 2
        elif parts >= len(before):
            break
        else:
            parts = min(len(before), 2 * parts)
    return failure


def _smallest_pair(failure: Comparison, shows: Shows) -> Comparison:
    """Try pairs of the fewest tokens: other rows before, or the same rows of another kind."""
    (before,), case = failure.before, failure.case
    pairs = [*_pairs(case, case), *_pairs(before, case)]
    seen = _first(shows((first,), last) for first, last in pairs)
    return failure if seen is None else seen


def _pairs(before: Case, case: Case) -> Iterator[tuple[Case, Case]]:
    """Two batches of as many tokens; those of two different cases may have the same rows."""
    for tokens in range(2, case.sp + 3):
        batches = [(tokens,), *((first, tokens - first) for first in range(1, tokens))]
        for one, other in product(batches, repeat=2):
            if one == other and before == case:
                continue
            try:
                yield _of_rows(before, one), _of_rows(case, other)
            except InvalidCase:
                continue


def _of_rows(case: Case, lengths: tuple[int, ...]) -> Case:
    rows = tuple(Row("1" * length) for length in lengths)
    return replace(case, rows=rows, ids=None, dp=1, micro_batches=1)


def _simpler(failure: Comparison, shows: Shows) -> Comparison:
    """Both cases with less of what they need not have."""
    for change in SIMPLER:
        cases = [*failure.before, failure.case]
        try:
            *before, case = (replace(each, ids=None, **change) for each in cases)
        except InvalidCase:
            continue
        if [*before, case] == cases:
            continue
        seen = shows(before, case)
        failure = failure if seen is None else seen
    return failure


def _first(found: Iterable[Comparison | None]) -> Comparison | None:
    return next((each for each in found if each is not None), None)
