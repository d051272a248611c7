"""The six outcomes, best to worst."""

from collections.abc import Iterable
from enum import IntEnum


class Verdict(IntEnum):
    """Only the first two are a pass."""

    EQUAL = 0
    WITHIN = 1
    UNSUPPORTED = 2
    KNOWN = 3
    FAULT = 4
    DIVERGED = 5

    @property
    def passed(self) -> bool:
        return self <= Verdict.WITHIN

    @property
    def failed(self) -> bool:
        """What nobody listed; a run that was refused beforehand neither passed nor failed."""
        return self >= Verdict.FAULT

    @classmethod
    def worst(cls, verdicts: Iterable["Verdict"]) -> "Verdict":
        """A run is as good as its worst case; a run of nothing is a fault."""
        return max(verdicts, default=cls.FAULT)


# The names of those that are a pass, as documents have them.
PASSED = tuple(verdict.name for verdict in Verdict if verdict.passed)
