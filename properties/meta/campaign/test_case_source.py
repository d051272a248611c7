"""A candidate is judged on as many cases as were asked for, whatever it does not support."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.campaign import case_source
from harness.campaign.case_source import (
    NONE_OF,
    SEEDS,
    TIMES,
    NothingToDraw,
    Supply,
    draw,
    require_cases,
    within,
)
from harness.campaign.request import Request
from harness.campaign.tally import Tally
from harness.candidates import Named
from harness.case import Case, LossContract, parse
from harness.case.stated import BadField, outside
from harness.compare import Comparison, Verdict
from harness.engine.lot import SIZE, Lot, Part

RANKS = 2
REQUEST = Request(
    candidates=("a", "b"),
    sps=(2,),
    dps=(1,),
    dtypes=("fp64",),
    losses=("token-mean", "micro-mean", "row-mean"),
    count=12,
    seed=0,
)
LOT = Lot(0, REQUEST.count)


def judged(campaign: Supply, *supports: Callable[[Case], bool]) -> tuple[list[Tally], list[Case]]:
    """What becomes of candidates of which each supports some cases."""
    asked = {does.__name__: does for does in supports}
    tallies, cases = {name: Tally() for name in asked}, []
    for jobs in campaign.rounds(tallies):
        for case, name in jobs:
            verdict = Verdict.EQUAL if asked[name](case) else Verdict.UNSUPPORTED
            comparison = Comparison(case=case, candidate=name, verdict=verdict, reason="it says")
            tallies[name].add(comparison)
            cases += [case] if verdict.passed else []
    return list(tallies.values()), cases


def everything(_case: Case) -> bool:
    return True


def nothing(_case: Case) -> bool:
    return False


def the_notebooks_batch(case: Case) -> bool:
    return case.vocab == 10


def of_token_mean(case: Case) -> bool:
    return case.loss == "token-mean"


def test_who_supports_all_cases_is_given_those_of_the_campaign_and_no_more() -> None:
    campaign = Supply(REQUEST, 2, LOT)
    (tally,), cases = judged(campaign, everything)
    assert cases == campaign.given == campaign.share == draw(REQUEST, 2)
    assert (tally.judged, tally.lacking) == (12, 0)


def test_who_supports_some_is_given_others_until_it_was_judged_on_as_many() -> None:
    tallies, cases = judged(Supply(REQUEST, 2, LOT), everything, of_token_mean)
    assert [tally.judged for tally in tallies] == [12, 12]
    assert [tally.lacking for tally in tallies] == [0, 0]
    # No two are equal, and who had enough was given none of what came later.
    mine = [case for case in cases if of_token_mean(case)]
    assert tallies[0].verdicts.total() == 12
    assert len(set(mine)) == 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "refused", "lacking"),
    [
        (nothing, NONE_OF, 12),
        (the_notebooks_batch, TIMES * 12 + NONE_OF, 11),
    ],
)
def test_who_supports_next_to_nothing_is_given_up_and_lacks_cases(
    does: Callable[[Case], bool], refused: int, lacking: int
) -> None:
    (tally,), _ = judged(Supply(REQUEST, 2, LOT), does)
    assert tally.lacking == lacking
    assert refused <= tally.refused.total() < refused + 12
    assert tally.verdict == "FAULT"


@pytest.mark.parametrize(
    "limits",
    [
        "loss=token-mean layers=1 window=none,3",
        "model=qwen3 loss=micro-mean,row-mean",
        "ranks=all layers=1",
    ],
)
def test_who_states_its_limits_is_given_nothing_in_vain_after_the_first_cases(limits: str) -> None:
    tallies, cases = {"a": Tally()}, []
    for jobs in Supply(replace(REQUEST, sps=(1, 2)), RANKS, LOT).rounds(tallies):
        for case, name in jobs:
            beyond = outside(case, limits, RANKS)
            verdict = Verdict.UNSUPPORTED if beyond else Verdict.EQUAL
            comparison = Comparison(case=case, candidate=name, verdict=verdict, reason=beyond)
            tallies[name].add(replace(comparison, limits=limits if beyond else ""))
            cases += [] if beyond else [case]
    assert len(set(cases)) == len(cases) == tallies["a"].judged == 12
    assert tallies["a"].refused.total() <= 12


@pytest.mark.slow
def test_who_is_beyond_its_limits_whatever_is_drawn_is_given_up_as_well() -> None:
    tally = Tally()
    for jobs in Supply(REQUEST, RANKS, LOT).rounds({"a": tally}):
        for case, name in jobs:
            seen = Comparison(case=case, candidate=name, verdict=Verdict.UNSUPPORTED, reason="no")
            tally.add(replace(seen, limits="layers=1"))
    assert NONE_OF <= tally.refused.total() < NONE_OF + 2 * REQUEST.count
    assert (tally.lacking, tally.verdict) == (12, "FAULT")


def test_lots_are_drawn_each_from_its_number_and_have_no_case_in_common() -> None:
    large = replace(REQUEST, count=3 * SIZE + 7)
    batch = draw(large, RANKS)
    assert len(batch) == len({*batch}) == large.count
    # Not by chance: where few cases are like what is stated, they differ by their seeds.
    assert [case.seed // SEEDS for case in batch] == [at // SIZE for at in range(large.count)]
    # Nobody else's were drawn, and nobody's were drawn otherwise for a campaign of another size.
    alone = Supply(replace(REQUEST, count=10**9), RANKS, Lot(2, SIZE)).share
    assert alone == batch[2 * SIZE : 3 * SIZE]
    assert Supply(large, RANKS, Lot(2, SIZE, Part(2, 5))).share == alone[1::5]


@pytest.mark.slow
def test_what_takes_the_place_of_cases_is_in_no_other_lot() -> None:
    large, given = replace(REQUEST, count=2 * SIZE), set[Case]()
    for number in range(2):
        campaign = Supply(large, RANKS, Lot(number, SIZE))
        (tally,), _ = judged(campaign, of_token_mean)
        assert tally.judged == SIZE
        assert len({*campaign.given}) == len(campaign.given) > SIZE
        assert given.isdisjoint(campaign.given)
        given |= {*campaign.given}
    assert given >= {*draw(large, RANKS)}


@pytest.mark.parametrize(
    ("limits", "loss", "stated"),
    [
        ("loss=token-mean", ("token-mean",), ("steps=1,2",)),
        ("steps=2,3 layers=1", REQUEST.losses, ("steps=2", "layers=1")),
        # In this order in every process: what is drawn depends on it.
        (
            "tied=0 ranks=all layers=1 vocab=9",
            REQUEST.losses,
            ("steps=1,2", "tied=0", "layers=1", "vocab=9"),
        ),
        ("dtype=bf16", (), ()),
        ("sp=4", (), ()),
        ("steps=3", (), ()),
    ],
)
def test_limits_narrow_what_is_asked_for_or_leave_nothing(
    limits: str, loss: tuple[LossContract, ...], stated: tuple[str, ...]
) -> None:
    asked = replace(REQUEST, stated=("steps=1,2",))
    if loss:
        assert within(asked, limits) == replace(asked, losses=loss, stated=stated)
        return
    with pytest.raises(NothingToDraw, match=f"{limits} is nothing that was asked for"):
        within(asked, limits)


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (
            "loss=micro-mean",
            "loss=micro-mean is nothing that was asked for; use --loss micro-mean",
        ),
        ("steps=3", "steps=3 is nothing that was asked for; use --set steps=3"),
        ("sp=2 ranks=all", ""),
    ],
)
def test_limits_that_leave_no_case_are_told_before_any_is_drawn(limits: str, told: str) -> None:
    class Pool:
        def limits(self, candidate: Named) -> str:
            assert candidate.name == "native-local"
            return limits

    pool: Any = Pool()
    asked = replace(
        REQUEST, candidates=("native-local",), losses=("token-mean",), stated=("steps=1,2",)
    )
    if not told:
        require_cases(asked, pool)
        return
    with pytest.raises(NothingToDraw, match=rf"^candidate=native-local: .*{told}"):
        require_cases(asked, pool)


def test_a_step_over_all_ranks_is_judged_on_cases_that_have_them_all() -> None:
    assert outside(parse("case/1 rows=2:11,2:11 sp=2 dp=2"), "ranks=all", 4) == ""
    beyond = outside(parse("case/1 rows=2:11 sp=2"), "layers=1 ranks=all", 4)
    assert beyond == "ranks=all, of which there are 4"
    with pytest.raises(BadField, match="ranks=2: of ranks, limits can say ranks=all and nothing"):
        outside(parse("case/1 rows=2:11"), "ranks=2", 2)


def test_in_the_place_of_a_case_that_nobody_can_judge_there_is_another() -> None:
    tally, cases = Tally(), []
    for jobs in Supply(REQUEST, RANKS, LOT).rounds({"a": tally}):
        for case, name in jobs:
            tally.add(hidden(case, name) if case.layers == 1 else seen(case, name))
            cases += [case] if case.layers > 1 else []
    assert tally.judged == len(cases) == 12
    assert (tally.lacking, tally.verdict) == (0, "EQUAL")
    assert tally.unjudgeable == {"fp64": {"grad.q": tally.verdicts["UNSUPPORTED"]}}
    # It is none that the candidate refused, and nothing of it counts as examined.
    assert not tally.refused
    assert tally.elements == 0
    assert tally.is_sound()
    assert Tally.from_record(tally.record()) == tally
    assert (tally + tally).hidden == 2 * tally.hidden
    assert (tally + tally).is_sound()


def test_where_nothing_could_be_judged_a_campaign_is_a_fault_and_ends() -> None:
    tally = Tally()
    for jobs in Supply(REQUEST, RANKS, LOT).rounds({"a": tally}):
        for case, name in jobs:
            tally.add(hidden(case, name))
    assert NONE_OF <= tally.hidden < NONE_OF + 12
    assert (tally.lacking, tally.verdict) == (12, "FAULT")


def hidden(case: Case, name: str) -> Comparison:
    return replace(seen(case, name), verdict=Verdict.UNSUPPORTED, swallowed=("grad.q", "grad.k"))


def seen(case: Case, name: str) -> Comparison:
    return Comparison(case=case, candidate=name, verdict=Verdict.EQUAL)


def test_where_there_are_no_more_cases_nobody_lacks_any(monkeypatch: pytest.MonkeyPatch) -> None:
    few = draw(REQUEST, 2)[1:]
    # Of a campaign's own seed, and of no lot beyond.
    monkeypatch.setattr(case_source, "drawn", lambda _, seed: iter(few if seed == 0 else ()))
    (tally,), cases = judged(Supply(REQUEST, 2, LOT), of_token_mean)
    assert 0 < tally.judged == len(cases) < 12
    assert (tally.lacking, tally.verdict) == (0, "EQUAL")


def test_no_two_shards_are_given_the_same_case() -> None:
    seen: list[Case] = []
    for number in (1, 2, 3):
        (tally,), cases = judged(Supply(REQUEST, 2, Lot(0, 12, Part(number, 3))), of_token_mean)
        assert tally.judged == 4
        seen += cases
    assert len(set(seen)) == len(seen) == 12


def test_no_two_pieces_of_a_lot_are_given_the_same_case() -> None:
    seen: list[Case] = []
    for number in (1, 2, 3):
        piece = Part(number, 3)
        (tally,), cases = judged(Supply(REQUEST, 2, Lot(0, 12, piece=piece)), of_token_mean)
        assert tally.judged == 4
        seen += cases
    assert len(set(seen)) == len(seen) == 12


def test_who_failed_is_given_no_more() -> None:
    campaign, tally = Supply(REQUEST, 2, LOT), Tally()
    for jobs in campaign.rounds({"a": tally}):
        failed = Comparison(case=jobs[0][0], candidate="a", verdict=Verdict.DIVERGED)
        assert tally.fail(failed, "a mark", ())
    assert campaign.given == campaign.share
