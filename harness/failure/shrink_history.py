"""A failure that needs a history, with as few cases as possible before it, and small ones.

Every try costs the launch of fresh ranks, since ranks that have run anything else may remember it.
So the cases are not shrunk step by step:

1. Cases are removed from the history, half of it at first (`_remove_cases`).
2. If one case is left, the smallest pairs of batches that may show the failure are tried.
3. Both cases get plain options, one layer and so on, where the failure stays.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from harness.case import Case, InvalidCase, Row
from harness.compare import Comparison
from harness.failure.confirm import describe_history, judge_on_fresh_ranks
from harness.failure.shrink import Shrunk
from harness.failure.shrink_passes import PLAIN_OPTIONS, Change
from harness.failure.signature import mark_of
from harness.judge import Job, Session

# Judges a case after a history on fresh ranks; returns None unless it fails in the same way.
Judge = Callable[[Sequence[Case], Case], Comparison | None]
# Changes that leave rows, heads and mesh alone, the largest first.
SIMPLIFICATIONS: tuple[Change, ...] = (
    {**PLAIN_OPTIONS, "layers": 1, "head_dim": 2, "vocab": 8, "pad_id": 0, "seed": 0},
    PLAIN_OPTIONS,
    {"layers": 1},
    {"head_dim": 2},
    {"vocab": 8, "pad_id": 0},
    {"seed": 0},
)


def shrink_with_history(failure: Comparison, session: Session, seconds: float) -> Shrunk:
    """Shrink the history of a failure; if one case is enough, shrink both cases too."""
    until, mark, tried = time.monotonic() + seconds, mark_of(failure), 0

    def judge(history: Sequence[Case], case: Case) -> Comparison | None:
        nonlocal tried
        if time.monotonic() > until:
            return None
        tried += 1
        comparison = judge_on_fresh_ranks(Job.again(failure, case), session, history)
        return comparison if mark_of(comparison).same_kind(mark) else None

    small = _remove_cases(failure, judge)
    if len(small.inquiry.before) == 1:
        small = _simplify(_smallest_pair(small, judge), judge)
    finished = time.monotonic() <= until
    why = describe_history(small.inquiry.before)
    if not finished and len(small.inquiry.before) > 1:
        why += "; fewer may do, but there was no time to try all of them"
    named = small.named(replace(failure.inquiry.seen[0], why=why), *failure.inquiry.seen[1:])
    return Shrunk(named, tried, finished=finished)


def _remove_cases(failure: Comparison, judge: Judge) -> Comparison:
    """Try halves of the history, then smaller parts of it and what is left without each part."""
    parts = 2
    while len(failure.inquiry.before) > 1:
        history = failure.inquiry.before
        length = -(-len(history) // parts)
        cuts = [(start, start + length) for start in range(0, len(history), length)]
        pieces = [history[start:stop] for start, stop in cuts]
        rests = [(*history[:start], *history[stop:]) for start, stop in cuts]
        tries = pieces if parts == 2 else [*pieces, *rests]
        found = _first_failure(judge(kept, failure.case) for kept in tries)
        if found is not None:
            failure, parts = found, 2
        elif parts >= len(history):
            break
        else:
            parts = min(len(history), 2 * parts)
    return failure


def _smallest_pair(failure: Comparison, judge: Judge) -> Comparison:
    """Try pairs of batches, those of the fewest tokens first; return the failure if none fails.

    First, both batches come from the failing case and differ in their rows. Then the earlier one
    comes from the case in the history, so that they may also differ in anything else.
    """
    (before,), case = failure.inquiry.before, failure.case
    pairs = [*_pairs(case, case), *_pairs(before, case)]
    found = _first_failure(judge((first,), last) for first, last in pairs)
    return failure if found is None else found


def _pairs(before: Case, case: Case) -> Iterator[tuple[Case, Case]]:
    """Yield pairs of batches of one or two rows, with as many tokens in both."""
    for tokens in range(2, case.sp + 3):
        batches = [(tokens,), *((first, tokens - first) for first in range(1, tokens))]
        for first_lengths, last_lengths in product(batches, repeat=2):
            if first_lengths == last_lengths and before == case:
                continue
            try:
                yield _with_rows(before, first_lengths), _with_rows(case, last_lengths)
            except InvalidCase:
                continue


def _with_rows(case: Case, lengths: tuple[int, ...]) -> Case:
    rows = tuple(Row("1" * length) for length in lengths)
    return replace(case, rows=rows, ids=None, dp=1, micro_batches=1)


def _simplify(failure: Comparison, judge: Judge) -> Comparison:
    """Make each of the simplifications in both cases where the failure stays."""
    for change in SIMPLIFICATIONS:
        cases = [*failure.inquiry.before, failure.case]
        try:
            *history, case = (replace(each, ids=None, **change) for each in cases)
        except InvalidCase:
            continue
        if [*history, case] == cases:
            continue
        found = judge(history, case)
        failure = failure if found is None else found
    return failure


def _first_failure(comparisons: Iterable[Comparison | None]) -> Comparison | None:
    return next((found for found in comparisons if found is not None), None)
