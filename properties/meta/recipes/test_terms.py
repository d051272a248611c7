"""A term of a loss that is wrong alone is named, with the term."""

import pytest

from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.judging import diagnosed, evaluate_all
from properties.helpers.places import PLANTED
from properties.meta.recipes.test_recipes import drawn

FAULTS = {
    "z_missing": ("term-misweighted", "the loss has 0.02 times z too little"),
    "entropy_twice": ("term-misweighted", "the loss has 0.05 times entropy too little"),
    "padding_in_z": ("pad-leak", "padding counts in the loss, unattended"),
    "prompts_in_entropy": ("mask-replaced", "in entropy alone: all tokens with a successor count"),
    "z_of_a_shard": ("statistic-per-rank", "in z alone: it is computed over the tokens in each"),
    "z_not_squared": ("term-wrong", "z comes out otherwise, and all else in the loss is right"),
}


def named(name: str) -> str:
    return f"{PLANTED / 'terms.py'}:{name}"


@pytest.mark.slow
def test_a_right_step_with_terms_passes(pool: RankPool) -> None:
    for comparison in evaluate_all(((case, named("right")) for case in drawn("", 6)), pool):
        assert comparison.verdict.passed, explain(comparison)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_term_that_is_wrong_alone_is_named_with_what_is_wrong(
    fault: str, pool: RankPool
) -> None:
    comparisons = evaluate_all(((case, named(fault)) for case in drawn("", 20)), pool)
    failure = next(seen for seen in comparisons if seen.verdict.failed)
    look = diagnosed(failure, pool).inquiry.looks[0]
    assert look.name == FAULTS[fault][0], look
    assert look.why.startswith(FAULTS[fault][1])
    assert "of 3 cases" in look.why
