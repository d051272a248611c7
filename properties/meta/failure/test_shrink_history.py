"""A failure that needs a history is shrunk to two small cases."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.against import ITSELF
from harness.candidates import locate
from harness.candidates.own.native import LocalDialect
from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.ulysses import Shard
from harness.case import Case, Dtype, parse
from harness.compare import Comparison, Verdict
from harness.compare.measurement import KeyResult
from harness.failure import shrink_history
from harness.failure.shrink import MOST_ERROR_DROP, shrink
from harness.failure.smallest import shrink_and_confirm
from harness.generation import cases, draw_list
from harness.judge import Job, Session
from harness.ranks.pool import RankPool
from properties.helpers.comparisons import comparison_with
from properties.helpers.judging import comparison_of, evaluate_all


class CachesItsMask(LocalDialect):
    """A step that makes one mask for each length of a stream, and reuses it."""

    name = "caches-its-mask"

    def __init__(self) -> None:
        self.known: dict[tuple[int, int | None], Any] = {}

    def segments(self, mine: Shard, case: Case) -> Segments:
        key = len(mine.positions_TP), case.window
        allowed_TT = super().segments(mine, case).allowed_TT
        return Segments.masked(self.known.setdefault(key, allowed_TT))


class CachesAndRefuses(CachesItsMask):
    """A step that caches its mask and refuses every batch of a multiple of three tokens."""

    name = "caches-and-refuses"

    def supports(self, case: Case) -> str | None:
        return super().supports(case) if case.tokens % 3 else "threes"


CACHES_ITS_MASK, CACHES_AND_REFUSES = CachesItsMask(), CachesAndRefuses()


@pytest.mark.long
@pytest.mark.parametrize(
    "candidate",
    [f"{__file__}:{name}" for name in ("CACHES_ITS_MASK", "CACHES_AND_REFUSES")] + ["mutants.B48"],
)
def test_a_failure_by_stale_state_shrinks_to_two_small_cases_within_70_seconds(
    candidate: str,
) -> None:
    drawn = draw_list(cases(sps=(2,), dps=(1,), dtypes=("fp64",), max_steps=1), 40, 0)
    with RankPool(2) as pool:
        for seen in evaluate_all(((case, candidate) for case in drawn), pool):
            if seen.verdict.failed:
                break
        assert seen.verdict.failed
        started = time.monotonic()
        found = shrink_and_confirm(seen, Session(pool), drawn[: drawn.index(seen.case)]).smallest
        assert time.monotonic() - started < 70
    assert found.inquiry.called == "stale-state"
    (before,) = found.inquiry.before
    for case in (before, found.case):
        assert case.tokens <= case.sp + 2
        assert len(case.rows) <= 2


# When a history makes a case fail: a mask is reused for other rows of the same length, or the
# sharing of heads from a model with another number of them.
REMEMBERED: dict[str, Callable[[Case, Case], bool]] = {
    "rows": lambda before, case: before.tokens == case.tokens and before.rows != case.rows,
    "heads": lambda before, case: before.kv_heads != case.kv_heads,
}


@pytest.mark.parametrize("memory", REMEMBERED)
def test_a_history_shrinks_to_one_case_and_both_cases_shrink(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ranks: a function decides which histories make a case fail."""
    seven = draw_list(cases(sps=(2,), dps=(1,), dtypes=("fp64",)), 7, 0)
    last = parse("case/1 rows=3:111,4:0111 heads=4/1 layers=2 sp=2 window=3")
    history = [*seven[:5], parse("case/1 rows=7:1111111 heads=4/4 sp=2"), *seven[5:]]

    def judge(job: Job, _: Session, history: Sequence[Case]) -> Comparison:
        fails = any(REMEMBERED[memory](earlier, job.case) for earlier in history)
        verdict = Verdict.DIVERGED if fails else Verdict.EQUAL
        return comparison_of(job, verdict, against=job.against, before=tuple(history))

    monkeypatch.setattr(shrink_history, "judge_on_fresh_ranks", judge)
    session = Session(RankPool(2))
    seen = judge(Job(last, locate("native-local"), ITSELF), session, history)
    named = seen.rooted("stale-state", "it remembers")
    found = shrink_history.shrink_with_history(named, session, 60).smallest
    assert found.against == ITSELF
    (first,) = found.inquiry.before
    assert REMEMBERED[memory](first, found.case)
    assert first.tokens == found.case.tokens == 2
    assert found.case.layers == 1
    assert found.case.window is None
    assert found.inquiry.looks[0].why == "it passes unless its ranks ran another case before it"
    rushed = shrink_history.shrink_with_history(named, session, 0)
    assert not rushed.finished
    assert rushed.smallest.inquiry.before == tuple(history)
    assert rushed.smallest.inquiry.looks[0].why == (
        "it passes unless its ranks ran 8 others before it; fewer may do, but there was no time "
        "to try all of them"
    )


LARGE = parse("case/1 rows=6:111111 sp=1")


@pytest.mark.parametrize("dtype", MOST_ERROR_DROP)
def test_a_smaller_case_with_a_far_smaller_error_is_not_taken(dtype: Dtype) -> None:
    def judge(case: Case) -> Comparison:
        used = 2 * MOST_ERROR_DROP[dtype] if case.tokens > 3 else 1.5
        return comparison_with(
            case=case,
            candidate="planted",
            verdict=Verdict.DIVERGED,
            keys=(KeyResult("loss", 1, 1, used),),
        )

    found = shrink(judge(replace(LARGE, dtype=dtype)), judge)
    assert found.smallest.case.tokens == 4
