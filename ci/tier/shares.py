"""Divide the time that is left among steps, and compute how many cases fit into a share."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tier.steps import Step

# The part of a share that is kept for cases that take longer than those of the probe.
SPARE = 0.3
# The number of cases if the probe did not measure how long they take; also the least number.
FEWEST = 20


def fitting(seconds: float, probe: Mapping[str, Any], took: float) -> int:
    """Return how many cases fit into so many seconds, from the document and seconds of the probe.

    The probe judged its cases twice. The rest of its seconds is the start, which every step needs.
    """
    cases, judging = probe.get("cases"), probe.get("seconds")
    if not cases or not judging or probe.get("ended"):
        return FEWEST
    start = max(took - 2 * judging, 0.0)
    return max(FEWEST, int(cases / judging * (seconds * (1 - SPARE) - start)))


def share(step: Step, later: Sequence[Step], left: float) -> float:
    """Return the seconds for a step, of those left for it and later ones; 0 leaves it out.

    A step of a fixed length gets its limit. A step that can run fewer cases gets a part of what is
    left, in proportion to the limits of the steps.
    """
    if left < step.least:
        return 0.0
    if not step.sized or math.isinf(left):
        return min(step.most, left)
    part = left * step.most / (step.most + sum(other.most for other in later))
    return min(step.most, max(step.least, part))
