"""What is wrong with a teacher alone is named, and said to be the teacher's."""

import pytest

from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.judging import diagnosed, evaluate_all
from properties.helpers.places import PLANTED
from properties.meta.recipes.test_recipes import drawn

FAULTS = {
    "shifted": (
        "column-shifted",
        "logits are those of the token before in the row, with zeros beyond the end of each shard",
    ),
    "positions_restarted": (
        "positions-restarted",
        "positions begin again in each shard of columns",
    ),
    "another_row": ("column-misplaced", "logits are those of another row"),
}


def named(name: str) -> str:
    return f"{PLANTED / 'taught.py'}:{name}"


@pytest.mark.slow
def test_a_right_step_with_a_teacher_passes(pool: RankPool) -> None:
    for comparison in evaluate_all(((case, named("right")) for case in drawn("", 6)), pool):
        assert comparison.verdict.passed, explain(comparison)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_a_teacher_alone_is_named(fault: str, pool: RankPool) -> None:
    comparisons = evaluate_all(((case, named(fault)) for case in drawn("", 20)), pool)
    failure = next(seen for seen in comparisons if seen.verdict.failed)
    look = diagnosed(failure, pool).inquiry.looks[0]
    name, how = FAULTS[fault]
    assert look.name == name, look
    assert look.why.startswith(f"in a teacher or reference, {how}; this predicts all gradients")
