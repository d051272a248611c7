"""Several steps of training are several steps of plain training."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.case import Case, parse
from harness.compare import Comparison, Verdict
from harness.generation import cases
from harness.plugin import Evaluate
from harness.report import explain
from harness.trace import MisfitKind
from properties.helpers.asking import DIALECTS, drifting, few

CASE = parse("case/1 rows=5:11111,3:101 heads=4/2 vocab=16 sp=2 dp=2")
BETWEEN = ("KEEPS_GRADIENTS", "REDUCES_FIRST", "REDUCES_LAST")


def trained(case: Case, steps: int, candidate: str, evaluate: Evaluate) -> Comparison:
    """The last of so many steps against the same step of plain training."""
    return evaluate(replace(case, steps=steps), candidate)


@pytest.mark.slow
@pytest.mark.parametrize("candidate", DIALECTS)
@few
@given(case=cases(max_ranks=4, max_rows=3, max_length=8), steps=st.sampled_from((2, 3)))
def test_what_comes_after_a_step_is_what_plain_training_comes_to(
    harness_evaluate: Evaluate, candidate: str, case: Case, steps: int
) -> None:
    comparison = trained(case, steps, candidate, harness_evaluate)
    assert comparison.verdict.passed, explain(comparison)


@pytest.mark.parametrize("candidate", DIALECTS)
def test_a_step_changes_what_the_next_one_computes(
    harness_evaluate: Evaluate, candidate: str
) -> None:
    losses = set()
    for steps in (1, 2, 3):
        comparison = trained(CASE, steps, candidate, harness_evaluate)
        assert comparison.verdict.passed, explain(comparison)
        losses.add(comparison.loss)
    assert len(losses) == 3


@pytest.mark.slow(but=1)
@pytest.mark.wrong_on_purpose
@pytest.mark.parametrize("name", BETWEEN)
def test_what_goes_wrong_between_steps_is_found_in_two_and_right_in_one(
    harness_evaluate: Evaluate, name: str
) -> None:
    alone, two, three = (
        trained(CASE, steps, drifting(name), harness_evaluate) for steps in (1, 2, 3)
    )
    assert alone.verdict.passed, explain(alone)
    assert two.verdict is three.verdict is Verdict.DIVERGED


@pytest.mark.wrong_on_purpose
def test_replicas_that_drift_apart_are_told_by_each_other(harness_evaluate: Evaluate) -> None:
    comparison = trained(CASE, 2, drifting("REDUCES_FIRST"), harness_evaluate)
    split = {misfit.key for misfit in comparison.misfits if misfit.kind is MisfitKind.SPLIT}
    assert {"grad.embed", "grad.head"} <= split
