"""How much of the time that is left a step gets, and how many cases fit into it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tier.steps import Step

# What is kept of a share for cases that take longer than those of the probe.
SPARE = 0.3
# Where nothing is known of their seconds.
FEWEST = 20


@dataclass(frozen=True, slots=True)
class Pace:
    """What the probe found."""

    start: float
    cases_per_second: float

    @classmethod
    def of(cls, document: dict[str, Any], seconds: float) -> "Pace | None":
        """From what the probe printed and took; nothing where it judged nothing.

        Whatever it did besides judging its cases, every step has to do once.
        """
        try:
            cases, judging = document["cases"], document["seconds"]
        except KeyError:
            return None
        return cls(max(seconds - judging, 0.0), cases / judging) if cases and judging else None

    def fitting(self, seconds: float) -> int:
        """How many cases."""
        return max(
            FEWEST, math.floor(self.cases_per_second * (seconds * (1 - SPARE) - self.start))
        )


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
