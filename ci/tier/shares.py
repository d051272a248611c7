"""How much of the time that is left a step gets, and how many cases fit into it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tier.steps import Step

# What is kept of a share for cases that take longer than those of the probe.
SPARE = 0.3
# Where nothing is known of their seconds.
FEWEST = 20


def fitting(seconds: float, probe: Mapping[str, Any], took: float) -> int:
    """How many cases, by what the probe printed and took.

    It judged them twice. Whatever it did besides, every step has to do once.
    """
    cases, judging = probe.get("cases"), probe.get("seconds")
    if not cases or not judging or probe.get("ended"):
        return FEWEST
    start = max(took - 2 * judging, 0.0)
    return max(FEWEST, int(cases / judging * (seconds * (1 - SPARE) - start)))


def share(step: Step, later: Sequence[Step], left: float) -> float:
    """Seconds for a step, of those that are left for it and those after it; zero is none.

    What cannot be made shorter gets what it needs. What can, gets its part.
    """
    if left < step.least:
        return 0.0
    if not step.sized or math.isinf(left):
        return min(step.most, left)
    part = left * step.most / (step.most + sum(other.most for other in later))
    return min(step.most, max(step.least, part))
