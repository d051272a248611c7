"""The six outcomes of judging a case, from best to worst."""

from collections.abc import Iterable
from enum import IntEnum


class Verdict(IntEnum):
    """An outcome of judging; only EQUAL and WITHIN are a pass."""

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
        """Whether it is a new failure; UNSUPPORTED and KNOWN neither pass nor fail."""
        return self >= Verdict.FAULT

    @classmethod
    def worst(cls, verdicts: Iterable["Verdict"]) -> "Verdict":
        """Return the worst of these verdicts; FAULT if there are none, as nothing was judged."""
        return max(verdicts, default=cls.FAULT)


# The names of the passing verdicts, as documents spell them.
PASSED = tuple(verdict.name for verdict in Verdict if verdict.passed)
