"""The standing of one candidate in one lot: what is counted, and whether it is judged further."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from harness.campaign.tally import Tally
from harness.compare import Comparison
from harness.failure.signature import mark_of
from harness.judge.effect import Stated


@dataclass(slots=True)
class Standing:
    """A tally, and what decides which cases the candidate is still given."""

    tally: Tally = field(default_factory=Tally)
    # How many new failures are looked for, and the marks of those that are known.
    wanted: int = 1
    known: Collection[str] = ()
    # The first failure of each new mark.
    found: dict[str, Comparison] = field(default_factory=dict)
    # The candidate's limits, once a case was outside them, and how many cases were.
    limits: str = ""
    outside_limits: int = 0
    # Cases that passed, by the settings that they state.
    stated: Stated = field(default_factory=Stated)

    def add(
        self, comparison: Comparison, situations: Iterable[str] = (), seconds: float = 0.0
    ) -> bool:
        """Count one comparison; return whether it is a failure with a new mark."""
        self.tally.add(comparison, situations, seconds)
        if comparison.verdict.passed:
            self.stated.add(comparison.case)
        if comparison.limits:
            self.limits = comparison.limits
            self.outside_limits += 1
        if not comparison.verdict.failed:
            return False
        mark = str(mark_of(comparison))
        self.tally.marks[mark] += 1
        if mark in self.found or mark in self.known:
            return False
        self.found[mark] = comparison
        return True

    @property
    def is_done(self) -> bool:
        """Whether enough failures are found, so that the candidate is judged no further."""
        return len(self.found) >= self.wanted
