"""The counts of what a session judged, by result; no other place counts it.

A worker of pytest-xdist sends its counts as a text to the controller, which adds them to its own.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import to_builtins as asdict

from harness.against import compared_with
from harness.campaign.bias import Leanings
from harness.campaign.bounds import Bounds
from harness.campaign.counts import add_by_name
from harness.campaign.coverage import Coverage

if TYPE_CHECKING:
    from harness.compare import Comparison

# Tests that a line of the summary names.
MOST_NAMES = 3


@dataclass(slots=True)
class SessionRecord:
    """The results of all comparisons of a session."""

    verdicts: Counter[str] = field(default_factory=Counter)
    # Cases that candidates refused, by reason.
    refused: Counter[str] = field(default_factory=Counter)
    elements: int = 0
    launches: int = 0
    # Tests that did not fail though a comparison in them did, each with a description of it.
    unseen: dict[str, str] = field(default_factory=dict)
    # Tests that took a fixture that judges, judged nothing with it, and passed.
    idle: list[str] = field(default_factory=list)
    # Tests that drew cases for one candidate and judged only another, each with the first one.
    astray: list[str] = field(default_factory=list)
    # Tests that take a fixture that judges, and are parametrized with an empty list.
    empty: list[str] = field(default_factory=list)
    # The candidate of the command line, unless it is the default.
    named: str = ""
    # Workers of pytest-xdist that died before they sent their records.
    lost: int = 0
    # By candidate, the bounds of the cases that showed anything.
    bounds: dict[str, Bounds] = field(default_factory=dict)
    # Comparisons by what the candidate was compared with.
    against: Counter[str] = field(default_factory=Counter)
    # By candidate, what tests asked for and what of that was judged.
    coverage: dict[str, Coverage] = field(default_factory=dict)
    # By candidate, how far tensors lean in the cases that passed.
    leanings: dict[str, Leanings] = field(default_factory=dict)

    @property
    def leans(self) -> list[str]:
        """The tensors that are off by the same in every case, by too little to fail one case."""
        return [f"{name}: {text}" for name, each in self.leanings.items() for text in each.lines()]

    def cover(self, coverage: Mapping[str, Coverage], bounds: Mapping[str, Bounds]) -> None:
        """Add what a test or another session was asked for and judged."""
        self.coverage = add_by_name(self.coverage, coverage)
        self.bounds = add_by_name(self.bounds, bounds)

    @property
    def unexamined(self) -> list[str]:
        """The reasons why this session proves too little, one sentence each."""
        reasons = []
        if self.lost:
            noun = "a worker" if self.lost == 1 else f"{self.lost} workers"
            reasons.append(f"{noun} of pytest-xdist died and did not tell what was judged there")
        if set(self.verdicts) == {"UNSUPPORTED"}:
            reasons.append(f"none of {self.verdicts.total()} cases was judged: all were refused")
        for tests, mistake in (
            (self.idle, "took harness_prove or harness_evaluate, judged no case and passed"),
            (self.astray, "drew cases for a candidate and judged only another"),
            (self.empty, "took harness_prove or harness_evaluate and had no parameters"),
        ):
            if tests:
                noun = "a test" if len(tests) == 1 else f"{len(tests)} tests"
                more = ", ..." * (len(tests) > MOST_NAMES)
                reasons.append(f"{noun} {mistake}: {', '.join(tests[:MOST_NAMES])}{more}")
        if self.verdicts and self.named and not self._was_judged(self.named):
            reasons.append(f"--harness-candidate={self.named} was never judged, and others were")
        for name, coverage in self.coverage.items():
            reasons += [f"{name} was judged on {what}" for what in coverage.lacks(shared=True)]
        return reasons

    def _was_judged(self, candidate: str) -> bool:
        """Return whether it was judged, under this name or under another path of the file."""
        return os.path.abspath(candidate) in map(os.path.abspath, self.coverage)  # noqa: PTH100 - Path.resolve follows links

    def add(self, comparison: "Comparison") -> None:
        self.verdicts[comparison.verdict.name] += 1
        self.elements += comparison.measured.elements
        if comparison.verdict.name == "UNSUPPORTED":
            self.refused[comparison.reason] += 1
        else:
            self.against[comparison.against] += 1
        if comparison.verdict.passed:
            self.leanings.setdefault(comparison.candidate, Leanings()).add(comparison)

    def record(self) -> str:
        """Return the counts as JSON: pytest-xdist cannot send negative integers beyond 32 bits."""
        counts = {
            "verdicts": dict(self.verdicts),
            "refused": dict(self.refused),
            "elements": self.elements,
            "launches": self.launches,
            "unseen": self.unseen,
            "idle": self.idle,
            "astray": self.astray,
            "empty": self.empty,
            "against": dict(self.against),
            "bounds": {name: asdict(each) for name, each in self.bounds.items()},
            "leanings": {name: asdict(each)["by_dtype"] for name, each in self.leanings.items()},
            "coverage": {name: each.record() for name, each in self.coverage.items()},
        }
        return json.dumps(counts)

    def add_record(self, text: str) -> None:
        """Add the counts of another session."""
        record: dict[str, Any] = json.loads(text)
        self.verdicts.update(record["verdicts"])
        self.refused.update(record["refused"])
        self.elements += record["elements"]
        self.launches += record["launches"]
        self.unseen |= record["unseen"]
        self.idle += record["idle"]
        self.astray += record["astray"]
        self.empty += record["empty"]
        self.against.update(record["against"])
        leanings = {n: Leanings.from_record(each) for n, each in record["leanings"].items()}
        self.leanings = add_by_name(self.leanings, leanings)
        coverage = {n: Coverage.from_record(each) for n, each in record["coverage"].items()}
        self.cover(coverage, {n: Bounds(**each) for n, each in record["bounds"].items()})

    def lines(self) -> list[str]:
        """Return the lines of the summary; none if nothing was judged."""
        if not self.verdicts:
            return []
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.verdicts.items()))
        total = self.verdicts.total()
        launches = "1 launch" if self.launches == 1 else f"{self.launches} launches"
        examined = f"{self.elements:,} elements examined: {counts}"
        return [
            f"{total} cases judged in {launches}, {examined}",
            *(f"{count} UNSUPPORTED: {reason}" for reason, count in self.refused.most_common()),
            *self._bounds_lines(),
            *filter(None, map(compared_with, sorted(self.against))),
        ]

    def _bounds_lines(self) -> list[str]:
        """Return the bounds: one line if those of all candidates agree, else one for each."""
        texts = {name: each.text() for name, each in self.bounds.items() if each.values}
        if len({*texts.values()}) == 1:
            return [next(iter(texts.values()))]
        return [f"{name}, {text}" for name, text in texts.items()]


SESSION = pytest.StashKey[SessionRecord]()
