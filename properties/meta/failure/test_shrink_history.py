"""A step that remembers an earlier case is shown by two small ones."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from harness.against import ITSELF
from harness.candidates import locate
from harness.candidates.own.native import LocalDialect
from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.ulysses import Shard
from harness.case import Case, parse
from harness.compare import Comparison, Verdict
from harness.compare.comparison import KeyResult
from harness.failure import shrink_history
from harness.failure.shrink import MUCH, shrink
from harness.failure.smallest import smallest
from harness.generation import cases, generate
from harness.judge import Job, Session
from harness.ranks.pool import RankPool
from properties.helpers.judging import comparison_of, evaluate_all


class CachesItsMask(LocalDialect):
    """What sees what is remembered for every length of a stream."""

    name = "caches-its-mask"

    def __init__(self) -> None:
        self.known: dict[tuple[int, int | None], Any] = {}

    def segments(self, mine: Shard, case: Case) -> Segments:
        key = len(mine.positions_TP), case.window
        allowed_TT = super().segments(mine, case).allowed_TT
        return Segments.masked(self.known.setdefault(key, allowed_TT))


class AndRefusesMuch(CachesItsMask):
    """The same, and it refuses every batch of three tokens, six, nine and so on."""

    name = "and-refuses-much"

    def supports(self, case: Case) -> str | None:
        return super().supports(case) if case.tokens % 3 else "threes"


CACHES_ITS_MASK, AND_REFUSES_MUCH = CachesItsMask(), AndRefusesMuch()


@pytest.mark.long
@pytest.mark.parametrize(
    "candidate",
    [f"{__file__}:{name}" for name in ("CACHES_ITS_MASK", "AND_REFUSES_MUCH")] + ["mutants.B48"],
)
def test_two_small_cases_are_left_of_many(candidate: str) -> None:
    drawn = generate(cases(sps=(2,), dps=(1,), dtypes=("fp64",), max_steps=1), 40, 0)
    with RankPool(2) as pool:
        for seen in evaluate_all(((case, candidate) for case in drawn), pool):
            if seen.verdict.failed:
                break
        assert seen.verdict.failed
        started = time.monotonic()
        found = smallest(seen, Session(pool), drawn[: drawn.index(seen.case)]).smallest
        assert time.monotonic() - started < 70
    assert found.called == "stale-state"
    (before,) = found.before
    for case in (before, found.case):
        assert case.tokens <= case.sp + 2
        assert len(case.rows) <= 2


# The mask that one length left behind, and heads that one model did.
REMEMBERED: dict[str, Callable[[Case, Case], bool]] = {
    "rows": lambda before, case: before.tokens == case.tokens and before.rows != case.rows,
    "heads": lambda before, case: before.kv_heads != case.kv_heads,
}


@pytest.mark.parametrize("what", REMEMBERED)
def test_of_what_ran_before_as_little_is_left_as_may_be(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, by what ranks would say."""
    seven = generate(cases(sps=(2,), dps=(1,), dtypes=("fp64",)), 7, 0)
    last = parse("case/1 rows=3:111,4:0111 heads=4/1 layers=2 sp=2 window=3")
    before = [*seven[:5], parse("case/1 rows=7:1111111 heads=4/4 sp=2"), *seven[5:]]

    def on_fresh_ranks(job: Job, _: Session, before: Sequence[Case]) -> Comparison:
        fails = any(REMEMBERED[what](each, job.case) for each in before)
        verdict = Verdict.DIVERGED if fails else Verdict.EQUAL
        return comparison_of(job, verdict, against=job.against, before=tuple(before))

    monkeypatch.setattr(shrink_history, "on_fresh_ranks", on_fresh_ranks)
    session = Session(RankPool(2))
    seen = on_fresh_ranks(Job(last, locate("native-local"), ITSELF), session, before)
    rooted = seen.rooted("stale-state", "it remembers")
    found = shrink_history.shrink_sequence(rooted, session, 60).smallest
    assert found.against == ITSELF
    (first,) = found.before
    assert REMEMBERED[what](first, found.case)
    assert first.tokens == found.case.tokens == 2
    assert found.case.layers == 1
    assert found.case.window is None
    assert found.looks[0].why == "it passes unless its ranks ran another case before it"
    rushed = shrink_history.shrink_sequence(rooted, session, 0)
    assert not rushed.finished
    assert rushed.smallest.before == tuple(before)
    assert rushed.smallest.looks[0].why == (
        "it passes unless its ranks ran 8 others before it; fewer may do, but there was no time "
        "to try all of them"
    )


LARGE = parse("case/1 rows=6:111111 sp=1")


def test_a_failure_is_not_traded_for_rounding() -> None:
    def judged(case: Case) -> Comparison:
        used = 2 * MUCH if case.tokens > 3 else 1.5
        return Comparison(
            case=case,
            candidate="planted",
            verdict=Verdict.DIVERGED,
            keys=(KeyResult("loss", 1, 1, used),),
        )

    found = shrink(judged(LARGE), judged)
    assert found.smallest.case.tokens == 4
