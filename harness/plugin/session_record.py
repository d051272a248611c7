"""What a session judged, and how that came out: it is counted here, and nowhere else.

A worker of pytest-xdist hands what it counted to the controller as a record, which adds it.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import to_builtins as asdict

from harness.against import AGAINST_ITSELF, ITSELF
from harness.campaign.bias import Leanings
from harness.campaign.bounds import Bounds
from harness.campaign.counts import together
from harness.campaign.coverage import Coverage

if TYPE_CHECKING:
    from harness.compare import Comparison

MOST_NAMES = 3


@dataclass(slots=True)
class Judged:
    """The comparisons of a session."""

    verdicts: Counter[str] = field(default_factory=Counter)
    # By reason.
    refused: Counter[str] = field(default_factory=Counter)
    elements: int = 0
    launches: int = 0
    # Tests that did not fail though a comparison in them did: how often, and that comparison.
    unseen: dict[str, str] = field(default_factory=dict)
    # Tests that passed, took a fixture that judges, and judged nothing with it.
    idle: list[str] = field(default_factory=list)
    # Tests that drew cases for one candidate and judged another only, each with that one.
    astray: list[str] = field(default_factory=list)
    # Tests that were to judge something, and are parametrized with nothing.
    empty: list[str] = field(default_factory=list)
    # The candidate that the command line named, if it did.
    named: str = ""
    # Workers of pytest-xdist that died before they told what they judged.
    lost: int = 0
    # By candidate, of the cases in which something was learned.
    bounds: dict[str, Bounds] = field(default_factory=dict)
    # What it was compared with.
    against: Counter[str] = field(default_factory=Counter)
    # By candidate, what was to be proven of it, and what of that was judged.
    coverage: dict[str, Coverage] = field(default_factory=dict)
    # By candidate, what leans in the cases that passed.
    leanings: dict[str, Leanings] = field(default_factory=dict)

    @property
    def leans(self) -> list[str]:
        """What is off by the same in every case, and by too little to be told in one."""
        return [f"{name}: {text}" for name, each in self.leanings.items() for text in each.told()]

    def cover(self, coverage: Mapping[str, Coverage], bounds: Mapping[str, Bounds]) -> None:
        """What was to be judged in a test, or in another session, and what was."""
        self.coverage = together(self.coverage, coverage)
        self.bounds = together(self.bounds, bounds)

    @property
    def unexamined(self) -> list[str]:
        """What was to be judged, and was examined on too little."""
        told = []
        if self.lost:
            noun = "a worker" if self.lost == 1 else f"{self.lost} workers"
            told.append(f"{noun} of pytest-xdist died and did not tell what was judged there")
        if set(self.verdicts) == {"UNSUPPORTED"}:
            told.append(f"none of {self.verdicts.total()} cases was judged: all were refused")
        for tests, what in (
            (self.idle, "took harness_prove or harness_evaluate, judged no case and passed"),
            (self.astray, "drew cases for a candidate and judged only another"),
            (self.empty, "took harness_prove or harness_evaluate and had no parameters"),
        ):
            if tests:
                noun = "a test" if len(tests) == 1 else f"{len(tests)} tests"
                more = ", ..." * (len(tests) > MOST_NAMES)
                told.append(f"{noun} {what}: {', '.join(tests[:MOST_NAMES])}{more}")
        if self.verdicts and self.named and not self._was_judged(self.named):
            told.append(f"--harness-candidate={self.named} was never judged, and others were")
        for name, coverage in self.coverage.items():
            told += [f"{name} was judged on {what}" for what in coverage.lacks(shared=True)]
        return told

    def _was_judged(self, candidate: str) -> bool:
        """Under this name, or another of the same file."""
        return os.path.abspath(candidate) in map(os.path.abspath, self.coverage)  # noqa: PTH100

    def add(self, comparison: "Comparison") -> None:
        self.verdicts[comparison.verdict.name] += 1
        self.elements += comparison.elements
        if comparison.verdict.name == "UNSUPPORTED":
            self.refused[comparison.reason] += 1
        else:
            self.against[comparison.against] += 1
        if comparison.verdict.passed:
            self.leanings.setdefault(comparison.candidate, Leanings()).add(comparison)

    def record(self) -> str:
        """As text: the pipe of xdist takes no negative number of more than four bytes."""
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

    def take_in(self, text: str) -> None:
        """Add what another session counted."""
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
        self.leanings = together(self.leanings, leanings)
        coverage = {n: Coverage.from_record(each) for n, each in record["coverage"].items()}
        self.cover(coverage, {n: Bounds(**each) for n, each in record["bounds"].items()})

    def lines(self) -> list[str]:
        """What is told at the end; nothing where nothing was judged."""
        if not self.verdicts:
            return []
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.verdicts.items()))
        total = self.verdicts.total()
        launches = "1 launch" if self.launches == 1 else f"{self.launches} launches"
        examined = f"{self.elements:,} elements examined: {counts}"
        return [
            f"{total} cases judged in {launches}, {examined}",
            *(f"{count} UNSUPPORTED: {reason}" for reason, count in self.refused.most_common()),
            *self._bounds(),
            *([AGAINST_ITSELF] if self.against[ITSELF] else []),
        ]

    def _bounds(self) -> list[str]:
        """Once, or for each candidate where they were judged on other cases."""
        texts = {name: each.text() for name, each in self.bounds.items() if each.values}
        if len({*texts.values()}) == 1:
            return [next(iter(texts.values()))]
        return [f"{name}, {text}" for name, text in texts.items()]


JUDGED = pytest.StashKey[Judged]()
