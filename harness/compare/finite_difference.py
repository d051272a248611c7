"""Checks a candidate's gradients against its own losses, without any reference.

Weights w move along a direction d by a step h. With the gradient g at w,

    slope(h) = (loss(w + h d) - loss(w - h d)) / 2h  =  <g, d> + c h^2 + ...

So slope(2h) - slope(h) is three times the error c h^2 of slope(h), and slope(h) may be off by that
difference. In addition it may be off by the rounding of the two losses, divided by h: some units
of the loss, and of the terms of <g, d>, because each weight is rounded as well.
"""

from collections.abc import Mapping

import numpy as np

from harness.compare.budget import ROUNDING, SLOPE_STEP, SLOPE_UNITS
from harness.trace import GRADIENT, Trace
from harness.trace.trace import Values

# The nudges of the case at which `slope_misfit` needs its loss.
NUDGES = (-2 * SLOPE_STEP, -SLOPE_STEP, SLOPE_STEP, 2 * SLOPE_STEP)


def slope_misfit(
    losses: Mapping[float, float], trace: Trace, direction: Mapping[str, Values]
) -> str:
    """Return how the slope of the losses, by nudge, contradicts the fp64 gradients, or ""."""
    terms = [(trace[GRADIENT + name].values * part).ravel() for name, part in direction.items()]
    predicted = sum(float(term.sum()) for term in terms)
    size = abs(float(trace["loss"].values)) + sum(float(np.abs(term).sum()) for term in terms)
    slope, coarser = (
        (losses[step] - losses[-step]) / (2 * step) for step in (SLOPE_STEP, 2 * SLOPE_STEP)
    )
    rounding = SLOPE_UNITS * ROUNDING["fp64"] * size / SLOPE_STEP
    allowed = abs(coarser - slope) + rounding
    # Written so that a NaN is a contradiction.
    if abs(slope - predicted) <= allowed:
        return ""
    return (
        f"the loss rises by {slope:.10g} along the direction and the gradients say "
        f"{predicted:.10g}; off by {abs(slope - predicted):.2g}, allowed {allowed:.2g}"
    )
