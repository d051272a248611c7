"""The gradient of a step is the slope of the loss that it reports; this needs no reference."""

from dataclasses import replace
from math import nan

import numpy as np
import pytest
from hypothesis import given

from harness.case import Case, parse
from harness.compare import NUDGES, slope_misfit
from harness.generation import cases
from harness.ranks.pool import RankPool
from harness.reference.weights import seeded_direction
from harness.trace import Entry, Trace
from properties.helpers.asking import DIALECTS, fewer_examples, run_all

# It has both kinds of parallelism and every kind of parameter, and all of them affect its loss.
CASE = parse("case/1 rows=7:0111111,5:10110 heads=4/2 layers=2 vocab=16 sp=2 dp=2")


def misfit(case: Case, candidate: str, pool: RankPool) -> str:
    """Return how the gradients contradict the losses on nudged weights, or ""."""
    # Only the gradient of the first step belongs to the weights that are nudged.
    case = replace(case, steps=1, nudge=0.0)
    cases = [case, *(replace(case, nudge=nudge) for nudge in NUDGES)]
    unchanged, *nudged = run_all(pool, [(nudged_case, candidate) for nudged_case in cases])
    losses = {
        nudge: float(assembly.trace["loss"].values)
        for nudge, assembly in zip(NUDGES, nudged, strict=True)
    }
    direction = {name: way.numpy() for name, way in seeded_direction(case).items()}
    return slope_misfit(losses, unchanged.trace, direction)


@pytest.mark.slow
@pytest.mark.parametrize("candidate", DIALECTS)
@fewer_examples
@given(case=cases(max_ranks=4))
def test_the_gradient_is_the_slope_of_the_reported_loss(
    harness_pool: RankPool, candidate: str, case: Case
) -> None:
    assert misfit(case, candidate, harness_pool) == ""


@pytest.mark.parametrize(
    ("factor", "accepted"),
    [(1, True), (1 - 1e-9, False), (1 + 1e-9, False), (-1, False), (0, False), (nan, False)],
)
def test_a_slope_is_known_to_nine_digits(*, factor: float, accepted: bool) -> None:
    # The loss is w cubed, at w = 2, along the direction 1.
    trace = Trace()
    trace.put("loss", Entry(np.array(8.0)))
    trace.put("grad.w", Entry(np.array([12.0 * factor])))
    losses = {nudge: (2.0 + nudge) ** 3 for nudge in NUDGES}
    assert (slope_misfit(losses, trace, {"w": np.ones(1)}) == "") is accepted


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("candidate", ["mutants.B101", "mutants.B123", "mutants.B100"])
def test_a_gradient_that_is_not_the_slope_is_found(harness_pool: RankPool, candidate: str) -> None:
    assert misfit(CASE, "native-local", harness_pool) == ""
    assert "along the direction and the gradients say" in misfit(CASE, candidate, harness_pool)
