"""A right step passes in whatever style it is written, and a fault in it is found and named."""

import pytest

from harness.campaign.coverage import ENOUGH, Coverage
from harness.case import Case, Dtype
from harness.compare import Verdict
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.judging import diagnosed, evaluate_all
from properties.helpers.places import PLANTED
from properties.meta.recipes.test_recipes import drawn

STYLES = (
    "plain_loop",
    "with_ddp",
    "with_accelerate",
    "with_fsdp",
    "with_functional_collectives",
    "with_dtensors",
    "ring_with_zigzag",
    "with_context_parallel",
    "trainer",
    "accumulating",
    "checkpointing",
    "compiled",
    "with_lora",
)
# Torch cuts rows for this one.
FAULTY = [style for style in STYLES if style != "with_context_parallel"]
# Seconds for a case: on a busy machine a model takes long to compile.
COMPILING = 120.0
# Cases, for two ranks, where each rank takes seconds to compile each of them.
FEW = {"compiled": 3}
# This one computes parts of attention in fp32 whatever it is asked for.
DTYPES: dict[str, Dtype] = {"with_context_parallel": "fp32"}
FAULTS = {"labels_lost": "label-lost-at-edge", "positions_restarted": "positions-restarted"}


def named(name: str) -> str:
    return f"{PLANTED / 'styles.py'}:{name}"


def drawn_for(style: str, count: int) -> list[Case]:
    dtype, ranks = DTYPES.get(style, "fp64"), 2 if style in FEW else 4
    return drawn(style, FEW.get(style, count), dtype, ranks=ranks)


def prepare(style: str, pool: RankPool, monkeypatch: pytest.MonkeyPatch) -> None:
    if style == "with_accelerate":
        pytest.importorskip("accelerate")
    if style == "with_context_parallel" and pool.device == "cuda":
        pytest.skip("torch's ring does not merge what its fp32 kernel pads to 32 columns")
    if style == "compiled":
        monkeypatch.setattr(pool.deadlines, "case", COMPILING)


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_a_right_step_passes_in_any_style(
    style: str, pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(style, pool, monkeypatch)
    of_style = drawn_for(style, 8)
    comparisons = list(evaluate_all(((case, named(style)) for case in of_style), pool))
    assert len(comparisons) == FEW.get(style, 8)
    for comparison in comparisons:
        assert comparison.verdict.passed, explain(comparison)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("style", FAULTY)
def test_a_fault_is_found_and_named_in_any_style(
    style: str, fault: str, pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(style, pool, monkeypatch)
    wrong = named(f"{style}__{fault}")
    comparisons = evaluate_all(((case, wrong) for case in drawn_for(style, 20)), pool)
    failure = next(seen for seen in comparisons if seen.verdict.failed)
    assert failure.verdict is Verdict.DIVERGED
    if fault == "positions_restarted":
        assert failure.measured.first is not None
        assert failure.measured.first.key == "places"
    assert diagnosed(failure, pool).inquiry.called == FAULTS[fault]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "anomaly", "how"),
    [
        ("positions_of_ranks", "positions-wrong", "go on from rank to rank"),
        ("averaged_by_rank", "denominator-per-rank", "is computed alone, then averaged"),
    ],
)
def test_a_fault_of_columns_that_are_dealt_from_either_end_is_named(
    fault: str, anomaly: str, how: str, pool: RankPool
) -> None:
    wrong = named(f"ring_with_zigzag__{fault}")
    comparisons = evaluate_all(((case, wrong) for case in drawn("", 20)), pool)
    failure = next(seen for seen in comparisons if seen.verdict.failed)
    inquiry = diagnosed(failure, pool).inquiry
    assert inquiry.called == anomaly
    first = inquiry.looks[0]
    assert f"columns dealt from either end {how}" in f"{first.why} {first.how}"


@pytest.mark.slow
def test_a_recipe_that_does_not_take_every_change_names_a_fault_all_the_same(
    pool: RankPool,
) -> None:
    wrong = named("fussy__positions_restarted")
    comparisons = evaluate_all(((case, wrong) for case in drawn("", 20)), pool)
    failure = next(seen for seen in comparisons if seen.verdict.failed)
    before = pool.launches
    assert diagnosed(failure, pool).inquiry.called == "positions-restarted"
    # A hypothesis that a recipe does not take is not a fault.
    assert pool.launches == before


@pytest.mark.slow
def test_a_frozen_parameter_that_is_trained_is_found(pool: RankPool) -> None:
    comparisons = evaluate_all(((case, named("unfrozen")) for case in drawn("", 8)), pool)
    failure = next(seen for seen in comparisons if seen.verdict.failed)
    assert failure.measured.first is not None
    assert failure.measured.first.key.startswith("grad.head.")
    assert failure.measured.first.expected == 0
    assert [look.name for look in failure.inquiry.seen][:1] == ["frozen-trained"]
    assert "head.weight" in failure.inquiry.seen[0].why


@pytest.mark.slow
def test_a_frozen_parameter_does_not_count_as_one_that_was_never_examined(pool: RankPool) -> None:
    coverage = Coverage()
    judged = evaluate_all(((case, named("with_lora")) for case in drawn("", ENOUGH)), pool)
    for comparison in judged:
        assert comparison.verdict.passed, explain(comparison)
        coverage.add(comparison)
    assert list(coverage.lacks()) == []
    assert all("lora" in name for name in coverage.gradients)
