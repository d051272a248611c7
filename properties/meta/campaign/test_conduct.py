"""A campaign has one result, wherever and in whatever order its lots are judged."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.campaign.conduct import Campaign, LotJob
from harness.campaign.pending import PendingCandidate, PendingCandidates
from harness.campaign.request import Request
from harness.campaign.summary import INTERRUPTED, LIMIT, Summary
from harness.campaign.tally import Tally, distinct_failures
from harness.case import parse
from harness.compare import KeyResult, Verdict
from harness.engine.engine import Lost, ThisProcess, run_all
from harness.engine.lot import SIZE, WHOLE, Lot
from properties.helpers.comparisons import comparison_with

CASE = parse("case/1 rows=2:11 sp=2")
KEYS = (KeyResult("loss", 1, 0, 0.1),)
REQUEST = Request(
    candidates=("a", "b"), sps=(2,), dps=(1,), dtypes=("fp64",), losses=("token-mean",),
    count=6 * SIZE, seed=0,
)  # fmt: skip
LOTS = WHOLE.lots(REQUEST.count)
FAILURE: dict[str, Any] = {
    "case": str(CASE), "verdict": "DIVERGED", "explanation": "x", "replay": "y", "bundle": "z",
    "fault": None, "looks": [],
}  # fmt: skip
# Returns how a candidate comes out of a lot, or, for an empty name, what becomes of the lot.
Fate = Callable[[Lot, str], str]


@cache
def tally_of(count: int, verdict: Verdict) -> Tally:
    tally = Tally()
    for _ in range(count):
        tally.add(comparison_with(case=CASE, candidate="", verdict=verdict, keys=KEYS))
    return tally


def judge(lot: Lot, pending: PendingCandidates, fate: Fate) -> Summary:
    """Judge each candidate on all cases of a lot, or on one if it lacks cases or is to fail."""
    tallies = {name: Tally() for name in REQUEST.candidates}
    for entry in pending:
        outcome = fate(lot, name := entry.candidate)
        fails, _, mark = outcome.partition(" at ")
        is_new = fails == "fails" and mark not in entry.marks
        rest = 0 if outcome == "lacks" or (is_new and entry.wanted == 1) else len(lot) - 1
        first = Verdict.DIVERGED if fails == "fails" else Verdict.EQUAL
        tally = tallies[name] = tally_of(1, first) + tally_of(rest, Verdict.EQUAL)
        tally.coverage.asked["this"] = len(lot)
        tally.coverage.judged["this"] = rest + 1
        if fails == "fails":
            tally.marks[mark] = 1
        if is_new:
            tally.failures.append({**FAILURE, "first": {"key": mark.partition(" as ")[0]}})
        elif outcome == "lacks":
            tally.verdicts["UNSUPPORTED"], tally.refused["no"] = 300, 300
            tally.lacking = len(lot) - 1
    cases = max(tally.judged for tally in tallies.values())
    return Summary(
        request=REQUEST, ranks=2, versions={}, size=len(lot), of=1, shards=(1,), tallies=tallies,
        situations=Counter({"one": 1}), cases=cases, seconds=1.0,
    )  # fmt: skip


class FakeEngine:
    """An engine with room for several lots, of which `choose` selects the next one to finish."""

    def __init__(self, room: int, fate: Fate, choose: Callable[[int], int]) -> None:
        self.under_way: list[LotJob] = []
        # Every lot that was begun.
        self.begun: list[LotJob] = []
        self._room, self._fate, self._choose = room, fate, choose
        self.is_stopped = False
        # Whether a second Ctrl-C follows.
        self.has_second_ctrl_c = False

    @property
    def has_room(self) -> bool:
        return len(self.under_way) < self._room

    @property
    def is_busy(self) -> bool:
        return bool(self.under_way)

    def begin(self, share: LotJob) -> None:
        assert share[1]
        self.under_way.append(share)
        self.begun.append(share)

    def finished(self) -> tuple[LotJob, Summary | None]:
        share = lot, pending = self.under_way.pop(self._choose(len(self.under_way)))
        outcome = self._fate(lot, "")
        if outcome == "ctrl-c" and (not self.is_stopped or self.has_second_ctrl_c):
            self.under_way.append(share)
            raise KeyboardInterrupt
        if outcome == "lost":
            return share, None
        summary = judge(lot, pending, self._fate)
        if self.is_stopped:
            summary.ended = INTERRUPTED
        elif outcome == "late":
            summary.ended = LIMIT
        return share, summary

    def stop(self) -> None:
        self.is_stopped = True


def conduct(
    fate: Fate,
    room: int = 1,
    choose: Callable[[int], int] = lambda _: 0,
    known: Any = (),
    keep_going: int = 1,
    has_second_ctrl_c: bool = False,
) -> tuple[Summary, list[Lot], FakeEngine]:
    """Run a campaign; return its summary, the lots that were counted, and the engine."""
    counted: list[Lot] = []
    engine = FakeEngine(room, fate, choose)
    engine.has_second_ctrl_c = has_second_ctrl_c
    request = replace(REQUEST, keep_going=keep_going)
    campaign = Campaign(request, LOTS, lambda lot, *_: counted.append(lot))
    return campaign.run(engine, dict(known)), counted, engine


FATES = st.dictionaries(
    st.tuples(st.integers(0, 5), st.sampled_from(REQUEST.candidates)),
    st.sampled_from(("fails at x", "fails at y", "fails at z", "lacks")),
    max_size=6,
)


@given(FATES, st.integers(1, 4), st.integers(1, 3), st.randoms(use_true_random=False))
def test_the_order_in_which_lots_finish_does_not_change_the_result(
    fates: dict[tuple[int, str], str], room: int, keep_going: int, random: Any
) -> None:
    def fate(lot: Lot, name: str) -> str:
        return fates.get((lot.number, name), "")

    in_order, counted, _ = conduct(fate, keep_going=keep_going)
    shuffled, also_counted, _ = conduct(fate, room, random.randrange, keep_going=keep_going)
    assert shuffled == in_order
    assert also_counted == counted
    assert Summary.from_record(in_order.record()) == in_order
    assert in_order.size == REQUEST.count
    for tally in in_order.tallies.values():
        found = [failure["first"]["key"] for failure in tally.failures]
        assert len(found) == len({*found}) <= keep_going


def test_keep_going_judges_a_candidate_until_enough_distinct_failures_are_known() -> None:
    # The third failure has a new mark, but begins with a tensor that is known.
    outcomes = ("fails at x", "", "fails at x as q", "fails at x", "fails at y", "fails at z")
    fates = dict(enumerate(outcomes))
    summary, _, engine = conduct(
        lambda lot, name: name and fates.get(lot.number, ""), keep_going=2
    )
    tally = summary.tallies["a"]
    assert [failure["first"]["key"] for failure in tally.failures] == ["x", "y"]
    # A failure with a known mark is counted too.
    assert tally.marks == {"x": 2, "x as q": 1, "y": 1}
    # The third lot and the last one each ended with the one failure that was wanted of them.
    assert tally.judged == 3 * SIZE + 2
    marks = ("x", "x as q")
    assert engine.begun[3][1] == (PendingCandidate("a", marks, 1), PendingCandidate("b", marks, 1))
    assert len(engine.begun) == 5
    # By default one failure is enough.
    summary, _, engine = conduct(lambda lot, name: name and fates.get(lot.number, ""))
    assert (summary.tallies["a"].judged, len(engine.begun)) == (1, 1)


def test_failures_that_begin_alike_and_have_one_name_are_kept_once() -> None:
    record = {**FAILURE, "first": {"key": "q"}, "looks": [{"name": "scaled"}]}
    others = [
        {**record, "looks": [{"name": "lost"}]},
        {**record, "first": {"key": "k"}},
        {**record, "first": None, "fault": {"kind": "died", "last_key": "q"}},
    ]
    assert distinct_failures([record, *others, record | {"bundle": "other"}]) == [record, *others]


def test_a_failed_candidate_is_dropped_and_its_later_lots_do_not_count() -> None:
    def fate(lot: Lot, name: str) -> str:
        return "fails at x" if (lot.number, name) == (1, "a") else ""

    # The lot that was begun last finishes first.
    summary, counted, engine = conduct(fate, 3, lambda busy: busy - 1)
    assert counted == LOTS
    assert (summary.tallies["a"].judged, summary.tallies["b"].judged) == (SIZE + 1, REQUEST.count)
    # A failed candidate has no coverage, because that would depend on how lots are cut.
    requested = (summary.tallies[name].coverage.asked.total() for name in ("a", "b"))
    assert tuple(requested) == (0, REQUEST.count)
    third_lot = [pending for lot, pending in engine.begun if lot.number == 2]
    assert third_lot == [(PendingCandidate("a"), PendingCandidate("b")), (PendingCandidate("b"),)]


def test_a_campaign_ends_when_all_candidates_have_failed() -> None:
    summary, counted, engine = conduct(
        lambda lot, name: "fails at x" if lot.number == 1 and name else ""
    )
    assert counted == LOTS[:2]
    assert len(engine.begun) == 2
    assert (summary.size, summary.cases) == (REQUEST.count, SIZE + 1)


def test_a_candidate_that_lacks_cases_in_one_lot_lacks_all_later_lots() -> None:
    summary, _, _ = conduct(lambda lot, name: "lacks" if (lot.number, name) == (2, "a") else "")
    tally = summary.tallies["a"]
    assert (tally.judged, tally.lacking) == (2 * SIZE + 1, 4 * SIZE - 1)
    assert tally.verdict == "FAULT"


def in_lot_2(outcome: str) -> Fate:
    """Give lot 2 this fate, and no candidate any."""
    return lambda lot, name: outcome if lot.number == 2 and not name else ""


def test_after_the_limit_no_lot_begins_and_lots_under_way_are_counted() -> None:
    summary, counted, engine = conduct(in_lot_2("late"), 2, lambda busy: busy - 1)
    assert summary.ended == LIMIT
    assert not engine.is_stopped
    assert len(engine.begun) * SIZE == summary.cases
    # The journal keeps no lot that was cut short, and no lot after it.
    assert len(counted) < len(engine.begun)
    assert summary.size == REQUEST.count


def test_a_ctrl_c_stops_the_engine_and_counts_all_that_was_judged() -> None:
    summary, counted, engine = conduct(in_lot_2("ctrl-c"), 2, lambda busy: busy - 1)
    assert engine.is_stopped
    assert (summary.ended, summary.verdict) == (INTERRUPTED, "FAULT")
    assert len(engine.begun) * SIZE == summary.cases
    assert len(counted) < len(engine.begun)


def test_a_second_ctrl_c_does_not_wait_for_the_engine() -> None:
    summary, counted, engine = conduct(in_lot_2("ctrl-c"), has_second_ctrl_c=True)
    assert engine.is_stopped
    assert engine.is_busy
    assert (summary.ended, summary.verdict) == (INTERRUPTED, "FAULT")
    assert summary.cases == len(counted) * SIZE == 2 * SIZE
    assert summary.size == REQUEST.count


def test_a_lost_lot_is_judged_again_and_an_error_names_it_if_it_is_lost_twice() -> None:
    def fate(lot: Lot, name: str) -> str:
        return "lost" if lot.number == 2 and not name and next(losses, False) else ""

    losses = iter([True])
    summary, _, engine = conduct(fate)
    assert summary == conduct(lambda *_: "")[0]
    assert [lot.number for lot, _ in engine.begun] == [0, 1, 2, 2, 3, 4, 5]
    losses = iter([True, True])
    with pytest.raises(Lost, match="lot 2: whoever judged it was gone before it was done"):
        conduct(fate)


def test_known_lots_are_counted_and_not_judged_again() -> None:
    whole, _, _ = conduct(lambda *_: "")
    pending = tuple(map(PendingCandidate, REQUEST.candidates))
    known = {lot: (pending, judge(lot, pending, lambda *_: "")) for lot in LOTS[:4]}
    summary, counted, engine = conduct(lambda *_: "", known=known)
    assert [lot for lot, _ in engine.begun] == LOTS[4:]
    assert counted == LOTS
    assert summary == msgspec.structs.replace(whole, seconds=summary.seconds)


class Forgetful(ThisProcess[str, str]):
    """Loses a job once for each time that it is named in `lost`."""

    def __init__(self, *lost: str) -> None:
        super().__init__(str.upper)
        self._lose = [*lost]

    def finished(self) -> tuple[str, str]:
        job, done = super().finished()
        if job in self._lose:
            self._lose.remove(job)
            return job, cast("str", None)
        return job, done


def test_a_lost_job_is_done_again_and_an_error_names_it_if_it_is_lost_twice() -> None:
    done = dict(run_all("abc", Forgetful("b")))
    assert done == {"a": "A", "b": "B", "c": "C"}
    with pytest.raises(Lost, match="b: whoever judged it was gone before it was done, 2 times"):
        list(run_all("abc", Forgetful("b", "b")))
