"""What a step returns, or reads of its batch, is told in its own words if it cannot be used."""

import pytest

from harness.case import parse
from harness.compare import Verdict
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.judging import evaluate
from properties.helpers.places import PLANTED

CASE = parse("case/1 rows=4:0111,3:011 vocab=8 heads=2 sp=2 dim=2")
WANTED = "return the loss, a tensor or a number, or a pair of that and a dict of metrics"
IS_ONE = "; the batch is a dict; it is a list with micro_batches=True"
IS_LIST = "; the batch is a list of dicts, because of micro_batches=True"
OF_BATCH = "; the batch has input_ids, attention_mask, position_ids, labels, row, replica"


def named(name: str) -> str:
    return f"{PLANTED / 'returned.py'}:{name}"


@pytest.mark.slow
def test_a_number_is_as_good_as_a_tensor(pool: RankPool) -> None:
    comparison = evaluate(CASE, named("number"), pool)
    assert comparison.verdict.passed, explain(comparison)
    assert {"loss", "metric.twice"} <= {result.key for result in comparison.measured.keys}
    assert evaluate(CASE, named("wrong_number"), pool).verdict is Verdict.DIVERGED


@pytest.mark.slow(but=3)
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nothing", f"TypeError: the loss that was returned is NoneType; {WANTED}"),
        ("three", f"TypeError: a tuple of 3 was returned; {WANTED}"),
        ("a_list", f"TypeError: the metric twice is list; {WANTED}"),
        ("shortened", "key 'metric.twi' is no metric of the recipe; near: 'twice', which is not"),
        ("unknown_to_step", f"KeyError: 'advantage{OF_BATCH}"),
        ("unknown_to_recipe", f"of its recipe: rank 0 raised KeyError: 'advantage{OF_BATCH}"),
        ("over_one_batch", f"string indices must be integers, not 'str'{IS_ONE}"),
        ("first_of_one_batch", f"KeyError: '0{IS_ONE}"),
        ("one_of_many", f"not str{IS_LIST}"),
    ],
)
def test_what_cannot_be_used_is_a_fault_that_says_what_can(
    name: str, told: str, pool: RankPool
) -> None:
    comparison = evaluate(CASE, named(name), pool)
    assert comparison.fault is not None
    assert told in comparison.fault.summary


def test_a_model_without_any_gradient_was_not_trained(pool: RankPool) -> None:
    looks = evaluate(CASE, named("untrained"), pool).inquiry.seen
    assert [look.name for look in looks] == ["gradient-missing"]
    assert "all are zero, as if backward was never called, or on another model" in looks[0].why
