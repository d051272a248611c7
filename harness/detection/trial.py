"""Judge one mutant or benign variant, case after case, like any candidate."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from harness.against import ITSELF, Against
from harness.candidates import Named, locate
from harness.candidates.bank import Benign, Mutant
from harness.candidates.registry import SHARES
from harness.candidates.required import only_required
from harness.case import Case
from harness.compare import Comparison
from harness.failure.shrink import can_shrink
from harness.generation.situations.needs import lacking
from harness.judge import Job, Session, add_diagnosis
from harness.report import explain

# The steps that mutants and benign variants are made of.
NATIVE_STEP = "native-gather"

Shrink = Callable[[Comparison], Comparison]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The outcome for one mutant or benign variant."""

    key: str
    stage: str
    sentence: str
    # How many cases were judged up to the first failure, and how long that took.
    cases: int
    seconds: float
    # The first failure; these texts are empty if there was none.
    verdict: str = ""
    case: str = ""
    size: str = ""
    explanation: str = ""
    # The name that experiments give it, or what its case looks like if they find no name; and the
    # name that the bank expects.
    named: str = ""
    expected: str = ""
    # Needs of the mutant, as its bank has them, that the case which killed it does not meet.
    unmet: tuple[str, ...] = ()
    verdicts: dict[str, int] = field(default_factory=dict)
    # Whether it was compared with its own step at sp 1 and is wrong there too, so that it cannot
    # be found.
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
    """Judge a mutant until it is found, and name the failure."""
    started, verdicts = time.monotonic(), Counter[str]()
    name = mutant.candidate.name
    # A step with a recipe returns what is required, and shows nothing else.
    named = locate(only_required(name) if required_only and not mutant.trains else name)
    unchanged = locate(f"{SHARES}:{mutant.trains}" if mutant.trains else NATIVE_STEP)
    trial: dict[str, Any] = {
        "key": mutant.key,
        "stage": mutant.stage,
        "sentence": mutant.sentence,
        "expected": mutant.anomaly,
    }
    first = _first_own_failure(named, unchanged, cases, session, against, verdicts)
    if first is None:
        hidden = against == ITSELF and _is_wrong_at_sp_1(named, cases, session)
        return Trial(
            cases=verdicts.total(),
            seconds=_seconds_since(started),
            verdicts=dict(verdicts),
            hidden=hidden,
            **trial,
        )
    seconds = _seconds_since(started)
    # A name must not depend on how fast the machine is, and these steps are small.
    small = add_diagnosis(shrink(first) if shrink else first, session, seconds=inf)
    return Trial(
        cases=verdicts.total(),
        seconds=seconds,
        size=_describe_size(small.case),
        named=small.inquiry.called,
        unmet=tuple(lacking(first.case, mutant.needs)),
        verdicts=dict(verdicts),
        **_failure_fields(first, small),
        **trial,
    )


def _first_own_failure(
    named: Named,
    unchanged: Named,
    cases: Sequence[Case],
    session: Session,
    against: Against,
    verdicts: Counter[str],
) -> Comparison | None:
    """Return the first failure that the unchanged step does not have too; count each verdict."""
    left = list(cases)
    for comparison in session.judge(Job(case, named, against) for case in cases):
        left.pop(0)
        verdicts[comparison.verdict.name] += 1
        # Ranks that cannot start fail with every candidate, and so find no bug.
        if can_shrink(comparison):
            break
    else:
        return None
    again = Job(comparison.case, unchanged, against)
    if comparison.fault is None or not session.judge_one(again).fault:
        return comparison
    return _first_own_failure(named, unchanged, left, session, against, verdicts)


def _is_wrong_at_sp_1(named: Named, cases: Sequence[Case], session: Session) -> bool:
    """Whether a mutant fails against plain training if every case has sp 1."""
    alone = (Job(replace(case, sp=1), named) for case in cases)
    return any(comparison.verdict.failed for comparison in session.judge(alone))


def try_benign(
    variant: Benign, cases: Iterable[Case], session: Session, *, against: Against
) -> Trial:
    """Judge a benign variant until a case fails, which no case should."""
    started, verdicts = time.monotonic(), Counter[str]()
    failed: dict[str, Any] = {}
    named = locate(variant.candidate.name)
    for comparison in session.judge(Job(case, named, against) for case in cases):
        verdicts[comparison.verdict.name] += 1
        if comparison.verdict.failed:
            failed = {
                **_failure_fields(comparison, comparison),
                "named": comparison.inquiry.called,
            }
            break
    return Trial(
        key=variant.key,
        stage="benign",
        sentence=variant.sentence,
        cases=verdicts.total(),
        seconds=_seconds_since(started),
        verdicts=dict(verdicts),
        **failed,
    )


def _failure_fields(first: Comparison, small: Comparison) -> dict[str, Any]:
    return {
        "verdict": first.verdict.name,
        "case": str(small.case),
        "explanation": explain(small),
    }


def _describe_size(case: Case) -> str:
    """Describe rows, tokens and ranks in a few words."""
    rows = "1 row" if len(case.rows) == 1 else f"{len(case.rows)} rows"
    dp = f" dp {case.dp}" if case.dp > 1 else ""
    return f"{rows}, {case.tokens} tokens, sp {case.sp}{dp}"


def _seconds_since(started: float) -> float:
    return round(time.monotonic() - started, 3)
