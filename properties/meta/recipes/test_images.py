"""A step whose rows have images, and positions of three axes, is held to plain training."""

import pytest
import torch

from harness.case import Case, Row
from harness.compare import Verdict
from harness.ranks.pool import RankPool
from harness.recipes import Recipe, images
from harness.report import explain
from properties.helpers.judging import diagnosed, evaluate_all
from properties.helpers.places import PLANTED
from properties.meta.recipes.test_exact import agree
from properties.meta.recipes.test_recipes import COMMON, drawn

pytest.importorskip("transformers")
RECIPE = Recipe(images.qwen3_vl, images.supervised, images.COLUMNS)
# Each fault, and the first tensor of text that is wrong: tokens of images have no id of their own,
# and text has the same place on all axes.
FAULTS = {
    "positions_of_text": "model.language_model.rotary_emb",
    "positions_of_a_shard": "model.language_model.rotary_emb",
    "positions_first_cut": "model.language_model.rotary_emb",
    "axes_swapped": "model.language_model.layers.0.self_attn.o_proj",
    "features_uncut": "model.language_model.layers.0.self_attn.o_proj",
    "deepstack_uncut": "loss",
}


def named(name: str) -> str:
    return f"{PLANTED / 'images.py'}:{name}"


def test_each_row_begins_with_an_image_and_all_but_a_single_token_go_on_with_text() -> None:
    case = Case(rows=tuple(Row("1" * length) for length in (1, 2, 3, 4, 6, 8, 12)))
    batch = RECIPE.batch(case, list(range(7)), torch.device("cpu"), torch.float64)
    assert batch["kinds"].sum(1).tolist() == [1, 1, 1, 2, 4, 6, 6]
    assert batch["kinds"][:, 0].all()
    assert not batch["kinds"][:, 6:].any()


@pytest.mark.slow
def test_padding_and_the_order_of_rows_with_images_change_no_digit_that_counts() -> None:
    agree(RECIPE)


@pytest.mark.slow
@pytest.mark.parametrize("count", [8, pytest.param(100, marks=pytest.mark.long)])
def test_a_right_step_with_images_passes(count: int, pool: RankPool) -> None:
    comparisons = list(evaluate_all(((case, named("right")) for case in drawn("", count)), pool))
    assert len(comparisons) == count
    for comparison in comparisons:
        assert comparison.verdict.passed, explain(comparison)


# The step takes positions from the model, so that none are restarted in it.
@pytest.mark.long
@pytest.mark.parametrize("fault", sorted(COMMON.keys() - {"positions_restarted"}))
def test_a_common_fault_of_a_step_with_images_is_found_and_named(
    fault: str, pool: RankPool
) -> None:
    comparisons = evaluate_all(((case, named(fault)) for case in drawn("", 20)), pool)
    failure = next(seen for seen in comparisons if seen.verdict.failed)
    assert diagnosed(failure, pool).inquiry.called == COMMON[fault]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_images_or_of_axes_is_found_where_it_is(fault: str, pool: RankPool) -> None:
    comparisons = evaluate_all(((case, named(fault)) for case in drawn("", 20)), pool)
    failure = next(seen for seen in comparisons if seen.verdict.failed)
    assert failure.verdict is Verdict.DIVERGED
    assert not failure.measured.misfits
    assert failure.measured.first is not None
    assert failure.measured.first.key == FAULTS[fault], explain(failure)
