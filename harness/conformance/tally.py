"""How the cases of one stage came out."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.case import Case
from harness.compare import Comparison, Verdict
from harness.generation.situations import situations_of
from harness.trace import GRADIENT

# A comparison of losses sees a difference from here on: what suites that compare them allow.
SEEN_BY_LOSS = 0.01


@dataclass(slots=True)
class Tally:
    """Counts, and the first failure of every kind."""

    verdicts: Counter[str] = field(default_factory=Counter)
    # Situation, verdict: how many cases.
    situations: dict[str, Counter[str]] = field(default_factory=dict)
    # What was wrong in how many cases.
    wrong: Counter[str] = field(default_factory=Counter)
    # Of the cases in which something was wrong, those whose loss was right within a hundredth.
    unseen_by_loss: int = 0
    known: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    # The largest error as a share of its budget, of what passed.
    used: float = 0.0
    elements: int = 0
    stood_in: set[str] = field(default_factory=set)
    # By verdict and name, the smallest case and how many there were.
    first: dict[tuple[str, str], tuple[Comparison, int]] = field(default_factory=dict)

    def add(self, comparison: Comparison) -> None:
        verdict = comparison.verdict
        self.verdicts[verdict.name] += 1
        if verdict is Verdict.UNSUPPORTED:
            self.refused[comparison.reason.partition(":")[0]] += 1
            return
        for situation in situations_of(comparison.case):
            self.situations.setdefault(situation, Counter())[verdict.name] += 1
        self.elements += comparison.elements
        self.stood_in.update(comparison.stood_in)
        if verdict.passed:
            self.used = max(self.used, comparison.used)
        else:
            self._add_failure(comparison)

    def _add_failure(self, comparison: Comparison) -> None:
        self.wrong.update(what_is_wrong(comparison))
        self.unseen_by_loss += is_unseen_by_loss(comparison)
        if comparison.verdict is Verdict.KNOWN:
            self.known[comparison.reason.partition(" ")[0]] += 1
            return
        kind = comparison.verdict.name, name_of(comparison)
        first, count = self.first.get(kind, (comparison, 0))
        smaller = min(first, comparison, key=lambda each: _size(each.case))
        self.first[kind] = smaller, count + 1

    def judged(self) -> int:
        """How many were run."""
        return self.verdicts.total() - self.verdicts[Verdict.UNSUPPORTED.name]


def name_of(comparison: Comparison) -> str:
    """What a failure is called; a verdict where it has no name."""
    return comparison.called or comparison.verdict.name


def what_is_wrong(comparison: Comparison) -> Iterable[str]:
    """Which of the things that must hold did not."""
    if comparison.fault:
        return {"no fault"}
    wrong = {result.key for result in comparison.keys if result.wrong}
    kinds = {
        "loss": "loss" in wrong,
        "losses of tokens": "nll" in wrong,
        "gradients": any(key.startswith(GRADIENT) for key in wrong),
        "every token once": bool(comparison.misfits),
    }
    return {kind for kind, holds in kinds.items() if holds}


def is_unseen_by_loss(comparison: Comparison) -> bool:
    """Whether who compares losses alone would have let it pass."""
    if comparison.loss is None:
        return False
    expected, got = comparison.loss
    return abs(got - expected) <= SEEN_BY_LOSS * abs(expected)


def _size(case: Case) -> tuple[int, int]:
    return case.ranks, case.tokens
