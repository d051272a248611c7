"""A step that supports some cases only is held to the relations on these."""

import pytest
from hypothesis import strategies as st

from harness.candidates.own.mutants.loss import TrainsOnTheSum
from harness.candidates.own.native import LocalDialect
from harness.case import LossContract, parse
from harness.ranks.pool import RankPool
from properties.metamorphic.relation import Relation, Twin, Twins, arranged, twins_agree
from properties.metamorphic.trial import check

LIMITS = "loss=token-mean"


class OfOneLoss(LocalDialect):
    name, limits = "of-one-loss", LIMITS


class WrongOfOneLoss(TrainsOnTheSum):
    name, limits = "wrong-of-one-loss", LIMITS


RIGHT, WRONG = OfOneLoss(), WrongOfOneLoss()


def twice(loss: LossContract) -> Twins:
    case = parse(f"case/1 rows=3:011,2:11 sp=2 loss={loss}")
    return Twins(case, (Twin(arranged(case, [0, 1, 0, 1]), {}),))


def relation(*losses: LossContract) -> Relation:
    drawn = st.sampled_from(losses).map(twice)
    return Relation("a batch twice is a batch", drawn, "B89", twins_agree)


def test_it_can_pass_and_fail(harness_pool: RankPool) -> None:
    some = relation("row-mean", "token-mean")
    check(some, harness_pool, f"{__file__}:RIGHT")
    with pytest.raises(AssertionError, match="it is not true that a batch twice is a batch"):
        check(some, harness_pool, f"{__file__}:WRONG")


def test_a_relation_about_other_cases_is_skipped_with_what_limits_it(
    harness_pool: RankPool,
) -> None:
    said = "supports nothing of what it is about: its limits are loss=token-mean"
    with pytest.raises(pytest.skip.Exception, match=said):
        check(relation("row-mean", "micro-mean"), harness_pool, f"{__file__}:RIGHT")
