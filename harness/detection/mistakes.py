"""Try the mistakes of a step that has a recipe: which of them would its cases show?

A *mistake* is plain training with one thing done wrong, as a hypothesis of the recipe has it. A
case shows it if its loss or a gradient is then outside the budgets, as that of a step would be.
Only cases count that the step itself passes.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from harness.against import RECIPE
from harness.campaign.case_source import CaseSource
from harness.campaign.request import Request
from harness.campaign.standing import Standing
from harness.candidates import Named, locate
from harness.case import Case
from harness.compare import Comparison, Verdict, compare
from harness.engine.lot import WHOLE
from harness.judge import Job, Session
from harness.judge.stages import references_now
from harness.report import explain
from harness.trace import GRADIENT, Assembly, Fault, Trace, Unsupported

# A mistake that could be computed on none of so many cases is tried no more.
ENOUGH = 10


@dataclass(slots=True, kw_only=True)
class Mistake:
    """One mistake, and the first case that shows it."""

    anomaly: str
    sentence: str
    # How many cases it was tried on, and with how many of them the recipe could compute it.
    tried: int = 0
    computed: int = 0
    # Empty if no case shows it.
    case: str = ""
    # Why the recipe cannot compute it; empty if it can.
    fault: str = ""

    @property
    def is_possible(self) -> bool:
        """Whether plain training can make it, as far as is known: a teacher's needs a teacher."""
        return bool(self.computed or self.fault or not self.tried)

    @property
    def is_open(self) -> bool:
        return not (self.case or self.fault) and (self.is_possible or self.tried < ENOUGH)


@dataclass(slots=True, kw_only=True)
class Survey:
    """All mistakes of a recipe, tried on the cases of a campaign."""

    mistakes: list[Mistake] = field(default_factory=list)
    cases: int = 0
    # How many cases the step does not support, by its reason.
    refused: Counter[str] = field(default_factory=Counter)
    # The step's own failure, which ends the survey.
    failure: Comparison | None = None

    @property
    def shown(self) -> list[Mistake]:
        return [mistake for mistake in self.mistakes if mistake.case]

    @property
    def possible(self) -> list[Mistake]:
        return [mistake for mistake in self.mistakes if mistake.is_possible]

    @property
    def verdict(self) -> str:
        """That of the step, if it fails; a survey that shows nothing is a fault."""
        if self.failure is not None:
            return self.failure.verdict.name
        return (Verdict.WITHIN if self.shown else Verdict.FAULT).name

    def record(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "cases": self.cases,
            "refused": dict(self.refused),
            "shown": len(self.shown),
            "possible": len(self.possible),
            "failure": "" if self.failure is None else explain(self.failure),
            "mistakes": [asdict(mistake) for mistake in self.mistakes],
        }


def try_mistakes(
    request: Request,
    session: Session,
    on_case: Callable[[Survey], None] = lambda _survey: None,
) -> Survey:
    """Judge the step of a campaign on its cases, and try each mistake until a case shows it."""
    survey, step = Survey(), locate(request.candidates[0])
    for name in session.pool.hypotheses(step):
        anomaly, _, sentence = name.partition(": ")
        survey.mistakes.append(Mistake(anomaly=anomaly, sentence=sentence))
    for comparison in _judged(request, step, session):
        if comparison.verdict.failed:
            survey.failure = comparison
            break
        if comparison.verdict is Verdict.UNSUPPORTED:
            survey.refused[comparison.reason] += 1
            continue
        references = references_now(Job(comparison.case, step, RECIPE), session.pool)
        if isinstance(references, Fault | Unsupported):
            # A case on which no mistake is tried shows nothing.
            continue
        survey.cases += 1
        _try_on(comparison.case, references, step, session, survey.mistakes)
        on_case(survey)
        if not any(mistake.is_open for mistake in survey.mistakes):
            break
    return survey


def _judged(request: Request, step: Named, session: Session) -> Iterator[Comparison]:
    """Yield the comparisons of a campaign; no job is under way meanwhile."""
    for lot in WHOLE.lots(request.count):
        standing = Standing()
        source = CaseSource.for_candidates(request, session.pool, lot)
        for jobs in source.rounds({step.name: standing}):
            for case, _ in jobs:
                comparison = session.judge_one(Job(case, step))
                standing.add(comparison)
                yield comparison


def _try_on(
    case: Case, references: list[Trace], step: Named, session: Session, mistakes: list[Mistake]
) -> None:
    """Try all mistakes that are still open on one case."""
    oracle, *baselines = map(_loss_and_gradients, references)
    for mistake in (mistake for mistake in mistakes if mistake.is_open):
        name = f"{mistake.anomaly}: {mistake.sentence}"
        outcome = session.pool.run(case, step, oracle=True, plain=name)
        mistake.tried += 1
        if isinstance(outcome, Fault):
            mistake.fault = outcome.summary
        elif isinstance(outcome, Assembly) and outcome.trace:
            mistake.computed += 1
            wrong = replace(outcome, trace=_loss_and_gradients(outcome.trace))
            compared = case, step.name, oracle, baselines or [oracle], wrong
            if compare(*compared, of_our_model=False).verdict is Verdict.DIVERGED:
                mistake.case = str(case)


def _loss_and_gradients(trace: Trace) -> Trace:
    return trace.only({key for key in trace if key.startswith(GRADIENT)} | {"loss"})
