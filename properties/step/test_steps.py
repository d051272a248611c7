"""Several steps of training equal as many steps of plain training."""

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
from properties.helpers.asking import DIALECTS, fewer_examples, planted_drift

CASE = parse("case/1 rows=5:11111,3:101 heads=4/2 vocab=16 sp=2 dp=2")
BETWEEN = ("KEEPS_GRADIENTS", "REDUCES_FIRST", "REDUCES_LAST")


def train_and_judge(case: Case, steps: int, candidate: str, evaluate: Evaluate) -> Comparison:
    """Compare the last of several steps with the same step of plain training."""
    return evaluate(replace(case, steps=steps), candidate)


@pytest.mark.slow
@pytest.mark.parametrize("candidate", DIALECTS)
@fewer_examples
@given(case=cases(max_ranks=4, max_rows=3, max_length=8), steps=st.sampled_from((2, 3)))
def test_later_steps_are_those_of_plain_training(
    harness_evaluate: Evaluate, candidate: str, case: Case, steps: int
) -> None:
    comparison = train_and_judge(case, steps, candidate, harness_evaluate)
    assert comparison.verdict.passed, explain(comparison)


@pytest.mark.parametrize("candidate", DIALECTS)
def test_a_step_changes_what_the_next_one_computes(
    harness_evaluate: Evaluate, candidate: str
) -> None:
    losses = set()
    for steps in (1, 2, 3):
        comparison = train_and_judge(CASE, steps, candidate, harness_evaluate)
        assert comparison.verdict.passed, explain(comparison)
        losses.add(comparison.measured.loss)
    assert len(losses) == 3


@pytest.mark.slow(but=1)
@pytest.mark.wrong_on_purpose
@pytest.mark.parametrize("name", BETWEEN)
def test_a_bug_between_steps_shows_with_two_steps_and_not_with_one(
    harness_evaluate: Evaluate, name: str
) -> None:
    alone, two, three = (
        train_and_judge(CASE, steps, planted_drift(name), harness_evaluate) for steps in (1, 2, 3)
    )
    assert alone.verdict.passed, explain(alone)
    assert two.verdict is three.verdict is Verdict.DIVERGED


@pytest.mark.wrong_on_purpose
def test_replicas_that_drift_apart_are_found_without_a_reference(
    harness_evaluate: Evaluate,
) -> None:
    comparison = train_and_judge(CASE, 2, planted_drift("REDUCES_FIRST"), harness_evaluate)
    split = {
        misfit.key for misfit in comparison.measured.misfits if misfit.kind is MisfitKind.SPLIT
    }
    assert {"grad.embed", "grad.head"} <= split
