"""One mutant or benign variant, judged case after case like any candidate."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.against import ITSELF, Against
from harness.candidates import Named, locate
from harness.candidates.bank import Benign, Mutant
from harness.candidates.required import only_required
from harness.case import Case
from harness.compare import Comparison
from harness.failure.shrink import worth_shrinking
from harness.generation.situations.needs import lacking
from harness.judge import Job, Session, diagnosed
from harness.report import explain

# The step that mutants and benign variants are made of.
RIGHT = "native-gather"

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
    # What experiments call it; where they tell nothing, what this one case looks like.
    named: str = ""
    expected: str = ""
    # What it was said to need, and a case that killed it did not have.
    unmet: tuple[str, ...] = ()
    verdicts: dict[str, int] = field(default_factory=dict)
    # Whether nobody can find it by its own step at sp 1, since it is wrong there as well.
    hidden: bool = False

    @property
    def failed(self) -> bool:
        return bool(self.verdict)

    @property
    def named_right(self) -> bool:
        return self.failed and self.named == self.expected


def try_mutant(
    mutant: Mutant,
    cases: Sequence[Case],
    session: Session,
    shrink: Shrink | None,
    *,
    required_only: bool,
    against: Against,
) -> Trial:
    """Judge it until it was found, and name it."""
    started, verdicts = time.monotonic(), Counter[str]()
    whole = mutant.candidate.name
    named = locate(only_required(whole) if required_only else whole)
    trial: dict[str, Any] = {
        "key": mutant.key,
        "stage": mutant.stage,
        "sentence": mutant.sentence,
        "expected": mutant.anomaly,
    }
    first = _first_of_its_own(named, cases, session, against, verdicts)
    if first is None:
        hidden = against == ITSELF and _is_wrong_at_sp_1(named, cases, session)
        return Trial(
            cases=verdicts.total(),
            seconds=_since(started),
            verdicts=dict(verdicts),
            hidden=hidden,
            **trial,
        )
    seconds = _since(started)
    small = diagnosed(shrink(first) if shrink else first, session)
    return Trial(
        cases=verdicts.total(),
        seconds=seconds,
        size=size_of(small.case),
        named=small.called,
        unmet=tuple(lacking(first.case, mutant.needs)),
        verdicts=dict(verdicts),
        **_failure(first, small),
        **trial,
    )


def _first_of_its_own(
    named: Named,
    cases: Sequence[Case],
    session: Session,
    against: Against,
    verdicts: Counter[str],
) -> Comparison | None:
    """Its first failure that the right step does not have as well; each verdict is counted."""
    left = list(cases)
    for seen in session.judge(Job(case, named, against) for case in cases):
        left.pop(0)
        verdicts[seen.verdict.name] += 1
        # Ranks that cannot even run have not found it.
        if worth_shrinking(seen):
            break
    else:
        return None
    right = Job(seen.case, locate(RIGHT), against)
    if seen.fault is None or not session.judge_one(right).fault:
        return seen
    return _first_of_its_own(named, left, session, against, verdicts)


def _is_wrong_at_sp_1(named: Named, cases: Sequence[Case], session: Session) -> bool:
    alone = (Job(replace(case, sp=1), named) for case in cases)
    return any(seen.verdict.failed for seen in session.judge(alone))


def try_benign(
    variant: Benign, cases: Iterable[Case], session: Session, *, against: Against
) -> Trial:
    """Judge it until it was taken for a bug; it must not be."""
    started, verdicts = time.monotonic(), Counter[str]()
    failed: dict[str, Any] = {}
    named = locate(variant.candidate.name)
    for comparison in session.judge(Job(case, named, against) for case in cases):
        verdicts[comparison.verdict.name] += 1
        if comparison.verdict.failed:
            failed = {**_failure(comparison, comparison), "named": comparison.called}
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
