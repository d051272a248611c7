"""One mutant or benign variant, judged case after case like any candidate."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from harness.candidates.bank import Benign, Mutant
from harness.case import Case
from harness.compare import Comparison
from harness.failure.shrink import worth_shrinking
from harness.generation.situations.needs import lacking
from harness.judge import evaluate_all
from harness.ranks.pool import RankPool
from harness.report import explain

# One failing case may look like several things: a full mask is the same when it is shifted. So
# many are named, unless two agree before, and the name that most of them have counts.
NAMED_BY = 3
# How many more cases are judged for it.
MORE = 12

Shrink = Callable[[Comparison], Comparison]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of it."""

    key: str
    stage: str
    sentence: str
    # How many cases were judged, and how long that took, up to the first failure.
    cases: int
    seconds: float
    # The first failure, or an empty text and nothing.
    verdict: str = ""
    case: str = ""
    size: str = ""
    explanation: str = ""
    # The root of each failure that was looked at.
    names: tuple[str, ...] = ()
    expected: str = ""
    # What it was said to need, and a case that killed it did not have.
    unmet: tuple[str, ...] = ()
    verdicts: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return bool(self.verdict)

    @property
    def named(self) -> str:
        """The name that most failures have; of several, the one that came first."""
        return Counter(self.names).most_common(1)[0][0] if self.names else ""

    @property
    def named_right(self) -> bool:
        return self.failed and self.named == self.expected


def try_mutant(
    mutant: Mutant, cases: Iterable[Case], pool: RankPool, shrink: Shrink | None
) -> Trial:
    """Judge it until it was found and named."""
    started, verdicts = time.monotonic(), Counter[str]()
    failures: list[Comparison] = []
    to_first = 0, 0.0
    for comparison in evaluate_all(((case, mutant.candidate.name) for case in cases), pool):
        verdicts[comparison.verdict.name] += 1
        judged = verdicts.total()
        # Ranks that cannot even run have not found it.
        if worth_shrinking(comparison):
            if not failures:
                to_first = judged, time.monotonic() - started
            failures.append(comparison)
        # Ranks that raised or hung have to be started anew, and say the same each time.
        enough = len(failures) >= NAMED_BY or _agree(failures) or any(f.fault for f in failures)
        if enough or (failures and judged >= to_first[0] + MORE):
            break
    trial: dict[str, Any] = {
        "key": mutant.key,
        "stage": mutant.stage,
        "sentence": mutant.sentence,
        "expected": mutant.anomaly,
        "verdicts": dict(verdicts),
    }
    if not failures:
        return Trial(cases=verdicts.total(), seconds=_since(started), **trial)
    first = failures[0]
    small = shrink(first) if shrink else first
    return Trial(
        cases=to_first[0],
        seconds=round(to_first[1], 3),
        size=size_of(small.case),
        names=tuple(failure.called for failure in failures if failure.called),
        unmet=tuple(
            dict.fromkeys(lack for f in failures for lack in lacking(f.case, mutant.needs))
        ),
        **_failure(first, small),
        **trial,
    )


def _agree(failures: list[Comparison]) -> bool:
    roots = [failure.called for failure in failures if failure.called]
    return len(roots) > 1 and len(set(roots)) == 1


def try_benign(variant: Benign, cases: Iterable[Case], pool: RankPool) -> Trial:
    """Judge it until it was taken for a bug; it must not be."""
    started, verdicts = time.monotonic(), Counter[str]()
    failed: dict[str, Any] = {}
    for comparison in evaluate_all(((case, variant.candidate.name) for case in cases), pool):
        verdicts[comparison.verdict.name] += 1
        if comparison.verdict.failed:
            names = (comparison.called,) if comparison.called else ()
            failed = {**_failure(comparison, comparison), "names": names}
            break
    return Trial(
        key=variant.key,
        stage="benign",
        sentence=variant.sentence,
        cases=verdicts.total(),
        seconds=_since(started),
        verdicts=dict(verdicts),
        **failed,
    )


def _failure(first: Comparison, small: Comparison) -> dict[str, Any]:
    return {
        "verdict": first.verdict.name,
        "case": str(small.case),
        "explanation": explain(small),
    }


def size_of(case: Case) -> str:
    """Rows, tokens and ranks in a few letters."""
    rows = "1 row" if len(case.rows) == 1 else f"{len(case.rows)} rows"
    dp = f" dp {case.dp}" if case.dp > 1 else ""
    return f"{rows}, {case.tokens} tokens, sp {case.sp}{dp}"


def _since(started: float) -> float:
    return round(time.monotonic() - started, 3)
