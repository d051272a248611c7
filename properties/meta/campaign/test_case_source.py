"""A candidate is judged on as many cases as were requested, even if it refuses many."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from harness.campaign import case_source
from harness.campaign.case_source import (
    BEYOND_FROM,
    CASE_SEEDS,
    NONE_OF,
    TIMES,
    CaseSource,
    NothingToDraw,
    draw,
    in_full,
    narrow,
    require_cases,
    small,
)
from harness.campaign.request import Request
from harness.campaign.standing import Standing
from harness.campaign.tally import Tally
from harness.candidates import Named
from harness.case import Case, LossContract, parse
from harness.case.stated import InvalidField, violated_limit
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
SMALL = replace(REQUEST, up_to=2, count=45, kernels=("eager",))


def judge(source: CaseSource, *supports: Callable[[Case], bool]) -> tuple[list[Tally], list[Case]]:
    """Judge one candidate for each predicate; return its tally, and all supported cases."""
    predicates = {predicate.__name__: predicate for predicate in supports}
    standings, cases = {name: Standing() for name in predicates}, []
    for jobs in source.rounds(standings):
        for case, name in jobs:
            verdict = Verdict.EQUAL if predicates[name](case) else Verdict.UNSUPPORTED
            comparison = Comparison(case=case, candidate=name, verdict=verdict, reason="it says")
            standings[name].add(comparison)
            cases += [case] if verdict.passed else []
    return [standing.tally for standing in standings.values()], cases


def judge_within(limits: str, source: CaseSource) -> list[Case]:
    """Judge a candidate with these limits; return the cases within them."""
    standing, cases = Standing(), []
    for jobs in source.rounds({"a": standing}):
        for case, name in jobs:
            # A step that takes all ranks has as many as the case needs.
            reason = violated_limit(case, limits, case.ranks)
            verdict = Verdict.UNSUPPORTED if reason else Verdict.EQUAL
            comparison = Comparison(case=case, candidate=name, verdict=verdict, reason=reason)
            standing.add(replace(comparison, limits=limits if reason else ""))
            cases += [] if reason else [case]
    # No case but those of the first round is outside the limits.
    assert standing.tally.refused.total() <= len(source.share)
    assert standing.tally.judged == len(cases)
    return cases


def everything(_case: Case) -> bool:
    return True


def nothing(_case: Case) -> bool:
    return False


def the_notebooks_batch(case: Case) -> bool:
    return case.vocab == 10


def of_token_mean(case: Case) -> bool:
    return case.loss == "token-mean"


def test_a_candidate_that_supports_all_cases_is_given_only_those_of_the_campaign() -> None:
    source = CaseSource(REQUEST, 2, LOT)
    (tally,), cases = judge(source, everything)
    assert cases == source.handed_out == source.share == draw(REQUEST, 2)
    assert (tally.judged, tally.lacking) == (12, 0)


def test_a_candidate_that_refuses_cases_is_given_others_in_their_place() -> None:
    tallies, cases = judge(CaseSource(REQUEST, 2, LOT), everything, of_token_mean)
    assert [tally.judged for tally in tallies] == [12, 12]
    assert [tally.lacking for tally in tallies] == [0, 0]
    # The replacements are distinct, and only the candidate that needs them is given them.
    supported = [case for case in cases if of_token_mean(case)]
    assert tallies[0].verdicts.total() == 12
    assert len(set(supported)) == 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("supports", "refused", "lacking"),
    [
        (nothing, NONE_OF, 12),
        (the_notebooks_batch, TIMES * 12 + NONE_OF, 11),
    ],
)
def test_a_candidate_that_supports_almost_nothing_is_given_up_and_lacks_cases(
    supports: Callable[[Case], bool], refused: int, lacking: int
) -> None:
    (tally,), _ = judge(CaseSource(REQUEST, 2, LOT), supports)
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
def test_after_the_first_round_a_candidate_is_given_no_case_outside_its_limits(
    limits: str,
) -> None:
    cases = judge_within(limits, CaseSource(replace(REQUEST, sps=(1, 2)), RANKS, LOT))
    assert len(set(cases)) == len(cases) == 12


@pytest.mark.parametrize(
    ("sizes", "limits", "meshes"),
    [
        ({}, "ranks=all", {(2, 4), (4, 2)}),
        ({"named": ("dp",)}, "ranks=all", {(2, 2), (4, 1), (4, 2)}),
        ({}, "ranks=all dp=4", {(2, 4)}),
        ({"rare_sps": (8,), "count": BEYOND_FROM}, "ranks=all", {(2, 4), (4, 2), (8, 1)}),
        ({}, "ranks=all dp=1", {(2, 1), (4, 1)}),
        ({"named": ("dp",), "dps": (1, 3)}, "ranks=all", {(2, 3), (4, 1)}),
        ({"sps": (1,)}, "ranks=all dp=1,2", {(1, 2)}),
    ],
)
def test_a_candidate_that_needs_all_ranks_is_given_the_largest_cases_that_share_over_each_sp(
    sizes: dict[str, Any], limits: str, meshes: set[tuple[int, int]]
) -> None:
    request = replace(replace(REQUEST, sps=(1, 2, 4), dps=(1, 2)), **sizes)
    request, least = in_full(request, 8, limits)
    share = CaseSource(request, 8, Lot(0, request.count), least).share
    assert {(case.sp, case.dp) for case in share} == meshes


@pytest.mark.parametrize(
    ("limits", "recipes", "asked", "losses"),
    [
        (("loss=token-mean layers=1",), True, {}, {"token-mean"}),
        (("loss=token-mean",) * 2, True, {}, {"token-mean"}),
        # What was asked for is drawn, and refused; what only one refuses, the other is judged on.
        (("loss=token-mean",), True, {"named": ("loss",)}, {*REQUEST.losses}),
        (("loss=token-mean", ""), True, {}, {*REQUEST.losses}),
        (("loss=token-mean",), False, {}, {*REQUEST.losses}),
    ],
)
def test_limits_that_come_with_recipes_are_kept_from_the_first_case_on(
    limits: tuple[str, ...], recipes: bool, asked: dict[str, Any], losses: set[str]
) -> None:
    by_name = dict(zip(("native-local", "native-gather"), limits, strict=False))
    pool: Any = SimpleNamespace(
        size=RANKS,
        limits=lambda candidate: by_name[candidate.name],
        has_recipe=lambda _candidate: recipes,
    )
    request = replace(REQUEST, candidates=tuple(by_name), **asked)
    share = CaseSource.for_candidates(request, pool, LOT).share
    assert {case.loss for case in share} == losses


@pytest.mark.slow
def test_a_candidate_that_refuses_cases_within_its_own_limits_is_given_up() -> None:
    standing = Standing()
    tally = standing.tally
    for jobs in CaseSource(REQUEST, RANKS, LOT).rounds({"a": standing}):
        for case, name in jobs:
            verdict = Verdict.UNSUPPORTED
            comparison = Comparison(case=case, candidate=name, verdict=verdict, reason="no")
            standing.add(replace(comparison, limits="layers=1"))
    assert NONE_OF <= tally.refused.total() < NONE_OF + 2 * REQUEST.count
    assert (tally.lacking, tally.verdict) == (12, "FAULT")


@pytest.mark.slow
def test_each_lot_is_drawn_from_its_number_and_no_two_lots_share_a_case() -> None:
    large = replace(REQUEST, count=3 * SIZE + 7)
    batch = draw(large, RANKS)
    assert len(batch) == len({*batch}) == large.count
    # Cases of two lots differ at least in their seeds, also if few cases fit what is stated.
    assert [case.seed // CASE_SEEDS for case in batch] == [n // SIZE for n in range(large.count)]
    # A lot can be drawn alone, and does not depend on the size of the campaign.
    alone = CaseSource(replace(REQUEST, count=10**9), RANKS, Lot(2, SIZE)).share
    assert alone == batch[2 * SIZE : 3 * SIZE]
    assert CaseSource(large, RANKS, Lot(2, SIZE, Part(2, 5))).share == alone[1::5]


@pytest.mark.slow
def test_the_replacements_of_a_lot_are_in_no_other_lot() -> None:
    large, given = replace(REQUEST, count=2 * SIZE), set[Case]()
    for number in range(2):
        source = CaseSource(large, RANKS, Lot(number, SIZE))
        (tally,), _ = judge(source, of_token_mean)
        assert tally.judged == SIZE
        assert len({*source.handed_out}) == len(source.handed_out) > SIZE
        assert given.isdisjoint(source.handed_out)
        given |= {*source.handed_out}
    assert given >= {*draw(large, RANKS)}


@pytest.mark.parametrize(
    ("limits", "loss", "stated"),
    [
        ("loss=token-mean", ("token-mean",), ("steps=1,2",)),
        ("steps=2,3 layers=1", REQUEST.losses, ("steps=2", "layers=1")),
        # The order is the same in every process, because the cases that are drawn depend on it.
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
def test_limits_narrow_a_request_or_leave_nothing_of_it(
    limits: str, loss: tuple[LossContract, ...], stated: tuple[str, ...]
) -> None:
    request = replace(REQUEST, stated=("steps=1,2",))
    if loss:
        assert narrow(request, limits) == replace(request, losses=loss, stated=stated)
        return
    with pytest.raises(NothingToDraw, match=f"{limits} is nothing that was asked for"):
        narrow(request, limits)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            "loss=micro-mean",
            "loss=micro-mean is nothing that was asked for; use --loss micro-mean",
        ),
        ("steps=3", "steps=3 is nothing that was asked for; use --set steps=3"),
        ("sp=2 ranks=all", ""),
    ],
)
def test_limits_that_leave_no_case_are_refused_before_any_is_drawn(
    limits: str, message: str
) -> None:
    class Pool:
        def limits(self, candidate: Named) -> str:
            assert candidate.name == "native-local"
            return limits

    pool: Any = Pool()
    request = replace(
        REQUEST, candidates=("native-local",), losses=("token-mean",), stated=("steps=1,2",)
    )
    if not message:
        require_cases(request, pool)
        return
    with pytest.raises(NothingToDraw, match=rf"^candidate=native-local: .*{message}"):
        require_cases(request, pool)


def test_the_limit_ranks_all_leaves_out_cases_with_fewer_ranks() -> None:
    assert violated_limit(parse("case/1 rows=2:11,2:11 sp=2 dp=2"), "ranks=all", 4) == ""
    reason = violated_limit(parse("case/1 rows=2:11 sp=2"), "layers=1 ranks=all", 4)
    assert reason == "ranks=all, of which there are 4"
    with pytest.raises(
        InvalidField, match="ranks=2: of ranks, limits can say ranks=all and nothing"
    ):
        violated_limit(parse("case/1 rows=2:11"), "ranks=2", 2)


def test_a_case_that_is_not_judgeable_is_replaced() -> None:
    standing, cases = Standing(), []
    tally = standing.tally
    for jobs in CaseSource(REQUEST, RANKS, LOT).rounds({"a": standing}):
        for case, name in jobs:
            standing.add(hidden(case, name) if case.layers == 1 else equal(case, name))
            cases += [case] if case.layers > 1 else []
    assert tally.judged == len(cases) == 12
    assert (tally.lacking, tally.verdict) == (0, "EQUAL")
    assert tally.unjudgeable == {"fp64": {"grad.q": tally.verdicts["UNSUPPORTED"]}}
    # Such a case is not counted as refused, and nothing in it as examined.
    assert not tally.refused
    assert tally.elements == 0
    assert tally.is_sound()
    assert Tally.from_record(tally.record()) == tally
    assert (tally + tally).hidden == 2 * tally.hidden
    assert (tally + tally).is_sound()


def test_a_campaign_without_a_judgeable_case_ends_as_a_fault() -> None:
    standing = Standing()
    tally = standing.tally
    for jobs in CaseSource(REQUEST, RANKS, LOT).rounds({"a": standing}):
        for case, name in jobs:
            standing.add(hidden(case, name))
    assert NONE_OF <= tally.hidden < NONE_OF + 12
    assert (tally.lacking, tally.verdict) == (12, "FAULT")


def hidden(case: Case, name: str) -> Comparison:
    return replace(equal(case, name), verdict=Verdict.UNSUPPORTED, swallowed=("grad.q", "grad.k"))


def equal(case: Case, name: str) -> Comparison:
    return Comparison(case=case, candidate=name, verdict=Verdict.EQUAL)


def test_a_candidate_lacks_no_case_if_no_more_can_be_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = draw(REQUEST, 2)[1:]
    # The first lot has these few cases, and no other lot has any.
    monkeypatch.setattr(case_source, "draw_cases", lambda _, seed: iter(few if seed == 0 else ()))
    (tally,), cases = judge(CaseSource(REQUEST, 2, LOT), of_token_mean)
    assert 0 < tally.judged == len(cases) < 12
    assert (tally.lacking, tally.verdict) == (0, "EQUAL")


def test_no_two_shards_are_given_the_same_case() -> None:
    seen: list[Case] = []
    for number in (1, 2, 3):
        (tally,), cases = judge(CaseSource(REQUEST, 2, Lot(0, 12, Part(number, 3))), of_token_mean)
        assert tally.judged == 4
        seen += cases
    assert len(set(seen)) == len(seen) == 12


def test_no_two_pieces_of_a_lot_are_given_the_same_case() -> None:
    seen: list[Case] = []
    for number in (1, 2, 3):
        piece = Part(number, 3)
        (tally,), cases = judge(CaseSource(REQUEST, 2, Lot(0, 12, piece=piece)), of_token_mean)
        assert tally.judged == 4
        seen += cases
    assert len(set(seen)) == len(seen) == 12


def test_a_failed_candidate_is_given_no_more_cases() -> None:
    source, standing = CaseSource(REQUEST, 2, LOT), Standing()
    for jobs in source.rounds({"a": standing}):
        failed = Comparison(case=jobs[0][0], candidate="a", verdict=Verdict.DIVERGED)
        assert standing.add(failed)
    assert source.handed_out == source.share


def test_no_small_case_is_replaced_and_who_refuses_some_lacks_none() -> None:
    def sometimes(case: Case) -> bool:
        return case.loss == "token-mean"

    source = CaseSource(SMALL, RANKS, Lot(0, SMALL.count))
    (tally,), passed = judge(source, sometimes)
    assert source.handed_out == source.share == list(small(SMALL, RANKS).cases(0, 100))
    assert (len(passed), tally.verdicts["UNSUPPORTED"], tally.lacking) == (15, 30, 0)
    assert tally.verdict == "EQUAL"


def test_lots_and_shards_of_all_small_cases_are_all_of_them_once() -> None:
    three = replace(SMALL, up_to=3, sps=(1, 2))
    count = len(small(three, RANKS))
    assert count > 4 * SIZE
    shards = [
        CaseSource(replace(three, count=count), RANKS, lot).share
        for shard in range(1, 4)
        for lot in Part(shard, 3).lots(count)
    ]
    cases = [case for share in shards for case in share]
    assert len(cases) == len({*cases}) == count
    assert {*cases} == {*small(three, RANKS).cases(0, count)}
