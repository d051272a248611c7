"""A picture shows labels and weights that the candidate does not emit, read off its gradients."""

import pytest

from harness.candidates.required import only_required
from harness.case import parse
from harness.ranks.pool import RankPool
from properties.helpers.judging import diagnosed, evaluate

CASE = parse("case/1 rows=7:1101111,4:0011:left,6:111111 heads=4/2 sp=2 dim=8 seed=3")
# The last token of rank 0.
LAST = 8


@pytest.mark.slow
def test_a_token_that_does_not_count_is_drawn_although_no_weights_are_emitted(
    harness_pool: RankPool,
) -> None:
    failure = evaluate(CASE, only_required("mutants.B21"), harness_pool)
    assert failure.inquiry.picture is not None
    assert failure.inquiry.picture.maps == ()
    picture = diagnosed(failure, harness_pool).inquiry.picture
    assert picture is not None
    (drawn,) = picture.maps
    assert drawn.key == "weight"
    assert [n for n, sign in enumerate(drawn.signs) if sign != "0"] == [LAST]
    by_key = {numbers.key: numbers for numbers in picture.numbers}
    assert by_key["weight"].inferred
    assert by_key["weight"].got[LAST] == 0
    assert by_key["labels"].got == by_key["labels"].expected


@pytest.mark.slow
def test_emitted_weights_are_drawn_as_they_are(harness_pool: RankPool) -> None:
    failure = evaluate(CASE, "mutants.B21", harness_pool)
    assert diagnosed(failure, harness_pool).inquiry.picture == failure.inquiry.picture


@pytest.mark.slow
def test_the_picture_counts_the_shares_of_ranks_in_each_gradient(
    harness_pool: RankPool,
) -> None:
    failure = diagnosed(evaluate(CASE, "mutants.B105", harness_pool), harness_pool)
    assert failure.inquiry.picture is not None
    shares = failure.inquiry.picture.shares
    assert shares.pop("embed") == {0: 0.5, 1: 0.5}
    assert len(shares) == 11
    assert all(counts == {0: 1.0, 1: 1.0} for counts in shares.values())
