"""What a session judged, and how that came out: it is counted here, and nowhere else.

A worker of pytest-xdist hands what it counted to the controller as a record, which adds it.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.compare import Comparison


@dataclass(slots=True)
class Judged:
    """The comparisons of a session."""

    verdicts: Counter[str] = field(default_factory=Counter)
    # By reason.
    refused: Counter[str] = field(default_factory=Counter)
    elements: int = 0
    launches: int = 0
    # Of tests that did not fail though a comparison in them did: how often, and that comparison.
    unseen: dict[str, str] = field(default_factory=dict)

    def add(self, comparison: "Comparison") -> None:
        self.verdicts[comparison.verdict.name] += 1
        self.elements += comparison.elements
        if comparison.verdict.name == "UNSUPPORTED":
            self.refused[comparison.reason] += 1

    def record(self) -> dict[str, Any]:
        """For a pipe between processes, which takes nothing but the usual kinds."""
        return {
            "verdicts": dict(self.verdicts),
            "refused": dict(self.refused),
            "elements": self.elements,
            "launches": self.launches,
            "unseen": self.unseen,
        }

    def take_in(self, record: dict[str, Any]) -> None:
        """Add what another session counted."""
        self.verdicts.update(record["verdicts"])
        self.refused.update(record["refused"])
        self.elements += record["elements"]
        self.launches += record["launches"]
        self.unseen |= record["unseen"]

    def lines(self) -> list[str]:
        """What is told at the end; nothing where nothing was judged."""
        if not self.verdicts:
            return []
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.verdicts.items()))
        total = self.verdicts.total()
        examined = f"{self.elements:,} elements examined: {counts}"
        return [
            f"{total} cases judged in {self.launches} launches, {examined}",
            *(f"{count} UNSUPPORTED: {reason}" for reason, count in self.refused.most_common()),
        ]


JUDGED = pytest.StashKey[Judged]()
