"""Relations on candidates that support some cases only, or none."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from harness.candidates.own.mutants.loss import TrainsOnTheSum
from harness.candidates.own.native import LocalDialect
from harness.case import LossContract, parse
from harness.ranks.pool import RankPool
from properties.metamorphic.relation import Relation, Twin, Twins, arranged, twins_agree
from properties.metamorphic.trial import PROBES, check, expensive_examples, unless_all_is_refused

LIMITS = "loss=token-mean"


class OfOneLoss(LocalDialect):
    name, limits = "of-one-loss", LIMITS


class WrongOfOneLoss(TrainsOnTheSum):
    name, limits = "wrong-of-one-loss", LIMITS


class RefusesAll(LocalDialect):
    name, limits = "refuses-all", "layers=9"


RIGHT, WRONG, REFUSES_ALL = OfOneLoss(), WrongOfOneLoss(), RefusesAll()


def twice(loss: LossContract) -> Twins:
    case = parse(f"case/1 rows=3:011,2:11 sp=2 loss={loss}")
    return Twins(case, (Twin(arranged(case, [0, 1, 0, 1]), {}),))


def relation(*losses: LossContract) -> Relation:
    drawn = st.sampled_from(losses).map(twice)
    return Relation("a batch twice is a batch", drawn, "B89", twins_agree)


@expensive_examples
@given(data=st.data())
def try_relation(
    subject: str, relation: Relation, pool: RankPool, refused: Counter[str], data: st.DataObject
) -> None:
    check(relation, pool, f"{__file__}:{subject}", data.draw(relation.drawn), refused)


@pytest.mark.slow
def test_a_relation_can_pass_and_fail(harness_pool: RankPool, refused: Counter[str]) -> None:
    some = relation("row-mean", "token-mean")
    try_relation("RIGHT", some, harness_pool, refused)
    with pytest.raises(AssertionError, match="it is not true that a batch twice is a batch"):
        try_relation("WRONG", some, harness_pool, refused)


@pytest.mark.slow
def test_a_relation_about_unsupported_cases_is_skipped_and_names_the_limits(
    harness_pool: RankPool, refused: Counter[str]
) -> None:
    others = relation("row-mean", "micro-mean")
    right = f"{__file__}:RIGHT"
    message = "RIGHT supports nothing of what it is about: its limits are loss=token-mean"
    with (
        pytest.raises(pytest.skip.Exception, match=message),
        unless_all_is_refused(harness_pool, right, refused),
    ):
        try_relation("RIGHT", others, harness_pool, refused)
    with pytest.raises(Unsatisfiable), unless_all_is_refused(harness_pool, right, Counter()):
        try_relation("RIGHT", others, harness_pool, refused)


@pytest.mark.slow
def test_a_candidate_that_supports_no_case_fails_instead_of_being_skipped(
    harness_pool: RankPool, refused: Counter[str]
) -> None:
    message = f"supports none of {PROBES} cases, and nothing is examined: its limits are layers=9"
    with (
        pytest.raises(pytest.fail.Exception, match=message),
        unless_all_is_refused(harness_pool, f"{__file__}:REFUSES_ALL", refused),
    ):
        try_relation("REFUSES_ALL", relation("row-mean"), harness_pool, refused)
