"""A campaign comes to the same, wherever and in whatever order its lots are judged."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.campaign.conduct import Campaign, Share
from harness.campaign.pending import Ask, Asked
from harness.campaign.request import Request
from harness.campaign.summary import INTERRUPTED, LIMIT, Summary
from harness.campaign.tally import Tally, different
from harness.case import parse
from harness.compare import Comparison, KeyResult, Verdict
from harness.engine.engine import Lost, ThisProcess, run_all
from harness.engine.lot import SIZE, WHOLE, Lot

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
# What becomes of a lot.
Fate = Callable[[Lot, str], str]


@cache
def tally(count: int, verdict: Verdict) -> Tally:
    made = Tally()
    for _ in range(count):
        made.add(Comparison(case=CASE, candidate="", verdict=verdict, keys=KEYS))
    return made


def judged(lot: Lot, asked: Asked, fate: Fate) -> Summary:
    """Of each name all cases, but where it is judged on one only or its first case fails."""
    tallies = {name: Tally() for name in REQUEST.candidates}
    for ask in asked:
        how = fate(lot, name := ask.candidate)
        fails, _, mark = how.partition(" at ")
        is_new = fails == "fails" and mark not in ask.marks
        rest = 0 if how == "lacks" or (is_new and ask.wanted == 1) else len(lot) - 1
        first = Verdict.DIVERGED if fails == "fails" else Verdict.EQUAL
        made = tallies[name] = tally(1, first) + tally(rest, Verdict.EQUAL)
        made.coverage.asked["this"] = len(lot)
        made.coverage.judged["this"] = rest + 1
        if fails == "fails":
            made.marks[mark] = 1
        if is_new:
            made.failures.append({**FAILURE, "first": {"key": mark.partition(" as ")[0]}})
        elif how == "lacks":
            made.verdicts["UNSUPPORTED"], made.refused["no"] = 300, 300
            made.lacking = len(lot) - 1
    cases = max(each.judged for each in tallies.values())
    return Summary(
        request=REQUEST, ranks=2, versions={}, size=len(lot), of=1, shards=(1,), tallies=tallies,
        situations=Counter({"one": 1}), cases=cases, seconds=1.0,
    )  # fmt: skip


class Fakes:
    """So many engine; which of them is done next is chosen from outside."""

    def __init__(self, room: int, fate: Fate, choose: Callable[[int], int]) -> None:
        self.begun: list[Share] = []
        self.asked: list[Share] = []
        self._room, self._fate, self._choose = room, fate, choose
        self.stopped = False
        # Whether there is another Ctrl-C.
        self.again = False

    @property
    def has_room(self) -> bool:
        return len(self.begun) < self._room

    @property
    def is_busy(self) -> bool:
        return bool(self.begun)

    def begin(self, share: Share) -> None:
        assert share[1]
        self.begun.append(share)
        self.asked.append(share)

    def finished(self) -> tuple[Share, Summary | None]:
        share = lot, asked = self.begun.pop(self._choose(len(self.begun)))
        how = self._fate(lot, "")
        if how == "ctrl-c" and (not self.stopped or self.again):
            self.begun.append(share)
            raise KeyboardInterrupt
        if how == "lost":
            return share, None
        found = judged(lot, asked, self._fate)
        if self.stopped:
            found.ended = INTERRUPTED
        elif how == "late":
            found.ended = LIMIT
        return share, found

    def stop(self) -> None:
        self.stopped = True


def conducted(
    fate: Fate,
    room: int = 1,
    choose: Callable[[int], int] = lambda _: 0,
    known: Any = (),
    going: int = 1,
    again: bool = False,
) -> tuple[Summary, list[Lot], Fakes]:
    counted: list[Lot] = []
    engine = Fakes(room, fate, choose)
    engine.again = again
    request = replace(REQUEST, keep_going=going)
    campaign = Campaign(request, LOTS, lambda lot, *_: counted.append(lot))
    return campaign.run(engine, dict(known)), counted, engine


FATES = st.dictionaries(
    st.tuples(st.integers(0, 5), st.sampled_from(REQUEST.candidates)),
    st.sampled_from(("fails at x", "fails at y", "fails at z", "lacks")),
    max_size=6,
)


@given(FATES, st.integers(1, 4), st.integers(1, 3), st.randoms(use_true_random=False))
def test_the_order_in_which_lots_are_done_changes_nothing(
    fates: dict[tuple[int, str], str], room: int, going: int, random: Any
) -> None:
    def fate(lot: Lot, name: str) -> str:
        return fates.get((lot.number, name), "")

    alone, counted, _ = conducted(fate, going=going)
    together, also, _ = conducted(fate, room, random.randrange, going=going)
    assert together == alone
    assert also == counted
    assert Summary.from_record(alone.record()) == alone
    assert alone.size == REQUEST.count
    for tally in alone.tallies.values():
        found = [failure["first"]["key"] for failure in tally.failures]
        assert len(found) == len({*found}) <= going


def test_a_candidate_is_judged_on_until_so_many_different_failures_are_known() -> None:
    # By the third it begins with a tensor that is known, as experiments say.
    seen = ("fails at x", "", "fails at x as q", "fails at x", "fails at y", "fails at z")
    fates = dict(enumerate(seen))
    found, _, engine = conducted(lambda lot, name: name and fates.get(lot.number, ""), going=2)
    tally = found.tallies["a"]
    assert [failure["first"]["key"] for failure in tally.failures] == ["x", "y"]
    # What is known already is counted all the same.
    assert tally.marks == {"x": 2, "x as q": 1, "y": 1}
    # One failure was wanted of the third lot and of the last, which ended with it.
    assert tally.judged == 3 * SIZE + 2
    assert engine.asked[3][1] == (Ask("a", ("x", "x as q"), 1), Ask("b", ("x", "x as q"), 1))
    assert len(engine.asked) == 5
    # The default.
    found, _, engine = conducted(lambda lot, name: name and fates.get(lot.number, ""))
    assert (found.tallies["a"].judged, len(engine.asked)) == (1, 1)


def test_of_failures_that_come_to_one_name_in_the_end_there_is_one() -> None:
    record = {**FAILURE, "first": {"key": "q"}, "looks": [{"name": "scaled"}]}
    others = [
        {**record, "looks": [{"name": "lost"}]},
        {**record, "first": {"key": "k"}},
        {**record, "first": None, "fault": {"kind": "died", "last_key": "q"}},
    ]
    assert different([record, *others, record | {"bundle": "other"}]) == [record, *others]


def test_who_failed_is_asked_no_more_and_what_it_did_meanwhile_counts_for_nothing() -> None:
    def fate(lot: Lot, name: str) -> str:
        return "fails at x" if (lot.number, name) == (1, "a") else ""

    # The last that was begun is done first.
    found, counted, engine = conducted(fate, 3, lambda busy: busy - 1)
    assert counted == LOTS
    assert (found.tallies["a"].judged, found.tallies["b"].judged) == (SIZE + 1, REQUEST.count)
    # Of how much it was asked depends on how lots are cut; of who failed nobody needs to know.
    asked = (found.tallies[name].coverage.asked.total() for name in ("a", "b"))
    assert tuple(asked) == (0, REQUEST.count)
    again = [asked for lot, asked in engine.asked if lot.number == 2]
    assert again == [(Ask("a"), Ask("b")), (Ask("b"),)]


def test_a_campaign_ends_with_the_last_who_is_asked() -> None:
    found, counted, engine = conducted(
        lambda lot, name: "fails at x" if lot.number == 1 and name else ""
    )
    assert counted == LOTS[:2]
    assert len(engine.asked) == 2
    assert (found.size, found.cases) == (REQUEST.count, SIZE + 1)


def test_who_was_judged_on_too_few_of_a_lot_lacks_all_that_follow() -> None:
    found, _, _ = conducted(lambda lot, name: "lacks" if (lot.number, name) == (2, "a") else "")
    tally = found.tallies["a"]
    assert (tally.judged, tally.lacking) == (2 * SIZE + 1, 4 * SIZE - 1)
    assert tally.verdict == "FAULT"


def in_lot_2(how: str) -> Fate:
    """Of the lot, and of no candidate."""
    return lambda lot, name: how if lot.number == 2 and not name else ""


def test_a_limit_begins_no_more_and_waits_for_what_is_under_way() -> None:
    found, counted, engine = conducted(in_lot_2("late"), 2, lambda busy: busy - 1)
    assert found.ended == LIMIT
    assert not engine.stopped
    assert len(engine.asked) * SIZE == found.cases
    # None that was cut short, and none behind it, is one to be gone on from.
    assert len(counted) < len(engine.asked)
    assert found.size == REQUEST.count


def ctrl_c(lot: Lot, name: str) -> str:
    return "ctrl-c" if lot.number == 2 and not name else ""


def test_a_ctrl_c_has_all_told_that_was_judged() -> None:
    found, counted, engine = conducted(ctrl_c, 2, lambda busy: busy - 1)
    assert engine.stopped
    assert (found.ended, found.verdict) == (INTERRUPTED, "FAULT")
    assert len(engine.asked) * SIZE == found.cases
    assert len(counted) < len(engine.asked)


def test_after_another_ctrl_c_nobody_is_waited_for() -> None:
    found, counted, engine = conducted(ctrl_c, again=True)
    assert engine.stopped
    assert engine.is_busy
    assert (found.ended, found.verdict) == (INTERRUPTED, "FAULT")
    assert found.cases == len(counted) * SIZE == 2 * SIZE
    assert found.size == REQUEST.count


def test_a_lot_that_is_lost_is_given_to_another_and_lost_again_it_is_named() -> None:
    def fate(lot: Lot, name: str) -> str:
        return "lost" if lot.number == 2 and not name and next(losses, False) else ""

    losses = iter([True])
    found, _, engine = conducted(fate)
    assert found == conducted(lambda *_: "")[0]
    assert [lot.number for lot, _ in engine.asked] == [0, 1, 2, 2, 3, 4, 5]
    losses = iter([True, True])
    with pytest.raises(Lost, match="lot 2: whoever judged it was gone before it was done"):
        conducted(fate)


def test_what_is_known_is_not_judged_again() -> None:
    whole, _, _ = conducted(lambda *_: "")
    asked = tuple(map(Ask, REQUEST.candidates))
    known = {lot: (asked, judged(lot, asked, lambda *_: "")) for lot in LOTS[:4]}
    found, counted, engine = conducted(lambda *_: "", known=known)
    assert [lot for lot, _ in engine.asked] == LOTS[4:]
    assert counted == LOTS
    assert found == msgspec.structs.replace(whole, seconds=found.seconds)


class Forgetful(ThisProcess[str, str]):
    """The first time that it has a job of this name, it loses it."""

    def __init__(self, *lost: str) -> None:
        super().__init__(str.upper)
        self._lose = [*lost]

    def finished(self) -> tuple[str, str]:
        job, done = super().finished()
        if job in self._lose:
            self._lose.remove(job)
            return job, cast("str", None)
        return job, done


def test_of_several_jobs_each_is_done_once_though_its_place_may_go() -> None:
    done = dict(run_all("abc", Forgetful("b")))
    assert done == {"a": "A", "b": "B", "c": "C"}
    with pytest.raises(Lost, match="b: whoever judged it was gone before it was done, 2 times"):
        list(run_all("abc", Forgetful("b", "b")))
