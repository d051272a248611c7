"""What is judged: a case, a candidate, and what it is compared with."""

from dataclasses import dataclass
from typing import Self

from harness.against import PLAIN, Against
from harness.candidates import Named, locate
from harness.case import Case
from harness.compare import Comparison
from harness.trace import Trace


@dataclass(frozen=True, slots=True)
class Job:
    """A case that a candidate is to be judged on."""

    case: Case
    candidate: Named
    against: Against = PLAIN
    # What it is compared with, if nothing need be computed for that.
    stored: Trace | None = None

    @classmethod
    def again(cls, seen: Comparison, case: Case | None = None) -> Self:
        """Return the job that led to a comparison, or the same on another case."""
        return cls(case or seen.case, locate(seen.candidate), seen.against)
