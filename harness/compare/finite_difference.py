"""A loss against its own gradient: no reference, only two things that one candidate says.

Weights w move along a direction d. Around the gradient g at w, with the step h of the budget,

    slope(h) = (loss(w + h d) - loss(w - h d)) / 2h  =  <g, d> + c h^2 + ...

so that slope(2h) - slope(h) is three times what slope(h) leaves out: that much it may be off.
Besides, h divides the rounding of the two losses: units of the loss, and of the terms of <g, d>,
by which each weight's own rounding moves it.
"""

from collections.abc import Mapping

import numpy as np

from harness.compare.budget import ROUNDING, SLOPE_STEP, SLOPE_UNITS
from harness.trace import GRADIENT, Trace
from harness.trace.trace import Values

# How far to nudge the case's weights, to know its loss there.
NUDGES = (-2 * SLOPE_STEP, -SLOPE_STEP, SLOPE_STEP, 2 * SLOPE_STEP)


def slope_misfit(
    losses: Mapping[float, float], trace: Trace, direction: Mapping[str, Values]
) -> str:
    """How the slope of the losses, by nudge, contradicts the gradients in fp64; or nothing."""
    terms = [(trace[GRADIENT + name].values * way).ravel() for name, way in direction.items()]
    told = sum(float(along.sum()) for along in terms)
    size = abs(float(trace["loss"].values)) + sum(float(np.abs(along).sum()) for along in terms)
    slope, coarser = (
        (losses[step] - losses[-step]) / (2 * step) for step in (SLOPE_STEP, 2 * SLOPE_STEP)
    )
    rounding = SLOPE_UNITS * ROUNDING["fp64"] * size / SLOPE_STEP
    allowed = abs(coarser - slope) + rounding
    # Not `>`: a NaN is a contradiction too.
    if abs(slope - told) <= allowed:
        return ""
    return (
        f"the loss rises by {slope:.10g} along the direction and the gradients say {told:.10g}; "
        f"off by {abs(slope - told):.2g}, allowed {allowed:.2g}"
    )
