"""A job: a case, a candidate, and the reference that it is compared with."""

from dataclasses import dataclass
from typing import Self

from harness.against import PLAIN, Against, names_recipe
from harness.candidates import Named, locate
from harness.candidates.registry import locate_recipe
from harness.case import Case
from harness.compare import Comparison
from harness.trace import Trace


@dataclass(frozen=True, slots=True)
class Job:
    """One judgement to make: of a candidate, on a case, against a reference."""

    case: Case
    candidate: Named
    against: Against = PLAIN
    # The trace of the reference, if it is stored and need not be computed.
    stored: Trace | None = None

    @property
    def recipe(self) -> Named:
        """What is asked for plain training: the recipe that is named, or the candidate."""
        return locate_recipe(self.against) if names_recipe(self.against) else self.candidate

    @classmethod
    def again(cls, comparison: Comparison, case: Case | None = None) -> Self:
        """Return the job that led to a comparison, on its case or on another one."""
        return cls(case or comparison.case, locate(comparison.candidate), comparison.against)
