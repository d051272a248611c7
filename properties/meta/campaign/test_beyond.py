"""A large campaign has some cases beyond the usual sizes, and shows the bounds of its cases."""

from collections import Counter
from dataclasses import replace

import pytest

from harness.against import RECIPE
from harness.campaign.bounds import Bounds
from harness.campaign.case_source import BEYOND_FROM, CaseSource, draw
from harness.campaign.request import Request
from harness.campaign.standing import Standing
from harness.case import parse
from harness.case.stated import violated_limit
from harness.compare import Comparison, KeyResult, Verdict
from harness.engine.lot import Lot, Part
from properties.helpers.comparisons import comparison_with
from properties.planted import false_passes
from properties.planted.false_passes import BEYOND, Altered, has_a_target

RANKS = 8
REQUEST = Request(
    candidates=("native-gather",),
    sps=(1, 2, 4),
    dps=(1, 2),
    dtypes=("fp64",),
    losses=("token-mean", "row-mean"),
    count=BEYOND_FROM,
    seed=0,
    rare_sps=(3, 5, 8),
    rare_dps=(4,),
)


@pytest.mark.parametrize("seed", range(4))
def test_a_large_campaign_has_a_case_for_each_fault_beyond_the_usual_sizes(seed: int) -> None:
    batch = draw(replace(REQUEST, seed=seed), RANKS)
    assert len(batch) == len({*batch}) == BEYOND_FROM
    for name in BEYOND:
        candidate: Altered = getattr(false_passes, name)
        failing = [case for case in batch if candidate.wrong(case) and has_a_target(case)]
        assert failing, f"{name} is wrong in no case of seed {seed}"


def test_a_smaller_campaign_has_usual_sizes_only() -> None:
    batch = draw(replace(REQUEST, count=BEYOND_FROM - 1), RANKS)
    assert len(batch) == BEYOND_FROM - 1
    for name in BEYOND:
        candidate: Altered = getattr(false_passes, name)
        assert not any(candidate.wrong(case) for case in batch)


def test_large_cases_keep_to_the_sizes_that_the_user_states() -> None:
    batch = draw(replace(REQUEST, sps=(2,), rare_sps=(), rare_dps=(), stated=("layers=2",)), 4)
    assert {(case.sp, case.layers) for case in batch} == {(2, 2)}
    assert {case.dp for case in batch} == {1, 2}
    assert max(len(row) for case in batch for row in case.rows) > 130


def test_each_shard_has_its_share_of_the_large_cases() -> None:
    batch = draw(replace(REQUEST, count=5 * BEYOND_FROM), RANKS)
    large = {case for case in batch if any(getattr(false_passes, n).wrong(case) for n in BEYOND)}
    shares = Counter(k for k in range(1, 6) for case in Part(k, 5).share(batch) if case in large)
    assert min(shares[k] for k in range(1, 6)) >= len(large) / 10


def bounds_of(*lines: str) -> Bounds:
    bounds = Bounds()
    for line in lines:
        bounds.add_case(parse(line))
    return bounds


def test_bounds_are_the_values_of_all_judged_cases_and_no_others() -> None:
    # A window of 9 cuts no row.
    one = "case/1 rows=2:11,3:111,4:1111 sp=2 window=2 heads=8/2 dp=3"
    wide = "case/1 rows=9:111111111 sp=2 window=9 heads=8/2"
    other = "case/1 rows=14:11111111111111 sp=4 heads=4/4 layers=3 model=qwen2 checkpoint=1"
    text = bounds_of(one, wide, other).text()
    for part in (
        "rows 1,3;", "tokens a row 2-4,9,14;", "sp x dp 2x1,2x3,4x1;", "heads 4,8;",
        "kv heads 2,4;", "layers 1,3;", "window 2,none;", "model llama,qwen2;",
        "wrapper none; none compiled, mixed",
    ):  # fmt: skip
        assert part in text
    assert bounds_of(one) + bounds_of(other) == bounds_of(other, one)
    assert Bounds().text() == ""


def test_a_case_whose_gradients_are_all_zero_is_not_in_the_bounds() -> None:
    case, bounds = parse("case/1 rows=3:111 sp=2"), Bounds()
    for zero in (True, False):
        assert bounds.text() == ""
        key = KeyResult("grad.head", 4, 0, 0.0, 0.0, zero=zero)
        bounds.add(comparison_with(case=case, candidate="a", verdict=Verdict.EQUAL, keys=(key,)))
    assert "rows 1; tokens a row 3" in bounds.text()
    assert "model llama" in bounds.text()


def test_the_bounds_of_a_step_with_a_recipe_name_no_loss_or_model_of_ours() -> None:
    bounds, key = Bounds(), KeyResult("grad.head", 4, 0, 0.0)
    case = parse("case/1 rows=3:111 sp=2")
    judged = comparison_with(case=case, candidate="a", verdict=Verdict.EQUAL, keys=(key,))
    bounds.add(replace(judged, against=RECIPE))
    assert "loss of the recipe; kernel eager; model of the recipe" in bounds.text()
    assert bounds.is_sound()


def test_a_candidate_with_limits_is_given_large_cases_within_them() -> None:
    limits = "loss=token-mean layers=1 micro=1 window=none tied=0 steps=1 dp=1"
    standing, large = Standing(), 0
    for jobs in CaseSource(REQUEST, RANKS, Lot(0, REQUEST.count)).rounds({"a": standing}):
        for case, name in jobs:
            reason = violated_limit(case, limits, RANKS)
            verdict = Verdict.UNSUPPORTED if reason else Verdict.EQUAL
            comparison = Comparison(case=case, candidate=name, verdict=verdict, reason=reason)
            standing.add(replace(comparison, limits=limits if reason else ""))
            large += not reason and false_passes.longest(case) > 12
    assert standing.tally.judged == BEYOND_FROM
    assert large >= 2
