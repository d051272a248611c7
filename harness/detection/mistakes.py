"""Try the mistakes of a step that has a recipe: which of them would its cases show?

A *mistake* is plain training with one thing done wrong, as a hypothesis of the recipe has it. A
case shows it if its loss or a gradient is then outside the budgets, as that of a step would be.
Only cases count that the step itself passes.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from harness.against import RECIPE
from harness.campaign.case_source import CaseSource
from harness.campaign.request import Request
from harness.campaign.standing import Standing
from harness.candidates import Named
from harness.case import Case
from harness.compare import Comparison, Verdict, compare
from harness.console import empty_table, print_plain
from harness.engine.lot import WHOLE
from harness.judge import Job, Session
from harness.judge.stages import references_now
from harness.report import explain
from harness.trace import GRADIENT, Assembly, Fault, Trace, Unsupported


@dataclass(slots=True, kw_only=True)
class Mistake:
    """One mistake, and the first case that shows it."""

    anomaly: str
    sentence: str
    # How many cases it was tried on.
    tried: int = 0
    # Empty if no case shows it.
    case: str = ""
    # Why the recipe cannot compute it; empty if it can.
    fault: str = ""

    @property
    def is_open(self) -> bool:
        return not (self.case or self.fault)


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
            "failure": "" if self.failure is None else explain(self.failure),
            "mistakes": [asdict(mistake) for mistake in self.mistakes],
        }


def try_mistakes(
    request: Request,
    step: Named,
    session: Session,
    on_case: Callable[[Survey], None] = lambda _survey: None,
) -> Survey:
    """Judge a step on a campaign, and try each mistake until a case shows it."""
    survey = Survey()
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
        survey.cases += 1
        _try_on(comparison.case, step, session, survey.mistakes)
        on_case(survey)
        if not any(mistake.is_open for mistake in survey.mistakes):
            break
    return survey


def _judged(request: Request, step: Named, session: Session) -> Iterator[Comparison]:
    """Yield the comparisons of a campaign; no job is under way meanwhile."""
    for lot in WHOLE.lots(request.count):
        standing = Standing()
        for jobs in CaseSource(request, session.pool.size, lot).rounds({step.name: standing}):
            for case, _ in jobs:
                comparison = session.judge_one(Job(case, step))
                standing.add(comparison)
                yield comparison


def _try_on(case: Case, step: Named, session: Session, mistakes: list[Mistake]) -> None:
    """Try all mistakes that are still open on one case."""
    references = references_now(Job(case, step, RECIPE), session.pool)
    if isinstance(references, Fault | Unsupported):
        return
    oracle, *baselines = map(_loss_and_gradients, references)
    for mistake in (mistake for mistake in mistakes if mistake.is_open):
        name = f"{mistake.anomaly}: {mistake.sentence}"
        outcome = session.pool.run(case, step, oracle=True, plain=name)
        mistake.tried += 1
        if isinstance(outcome, Fault):
            mistake.fault = outcome.summary
        elif isinstance(outcome, Assembly):
            wrong = replace(outcome, trace=_loss_and_gradients(outcome.trace))
            compared = case, step.name, oracle, baselines or [oracle], wrong
            if compare(*compared, of_our_model=False).verdict is Verdict.DIVERGED:
                mistake.case = str(case)


def _loss_and_gradients(trace: Trace) -> Trace:
    return trace.only({key for key in trace if key.startswith(GRADIENT)} | {"loss"})


class SurveyProgress:
    """Print a line whenever a case has shown further mistakes."""

    def __init__(self, console: Console) -> None:
        self._console, self._shown = console, 0

    def __call__(self, survey: Survey) -> None:
        if len(survey.shown) > self._shown:
            self._shown = len(survey.shown)
            print_plain(
                self._console,
                f"case {survey.cases}: {self._shown} of {len(survey.mistakes)} mistakes are shown",
            )


def show_survey(survey: Survey, console: Console) -> None:
    """Show in which case each mistake was found, and which were not."""
    if survey.failure is not None:
        print_plain(console, f"The step itself fails.\n\n{explain(survey.failure)}")
        return
    if not survey.cases:
        reasons = [f"{count} times because of '{why}'" for why, count in survey.refused.items()]
        print_plain(console, f"The step supports no case that was drawn: {'; '.join(reasons)}")
        return
    table = empty_table("mistakes that these cases show")
    table.add_column("case", justify="right", no_wrap=True)
    table.add_column("mistake", no_wrap=True)
    table.add_column("what is wrong", overflow="fold")
    for mistake in survey.shown:
        table.add_row(str(mistake.tried), mistake.anomaly, Text(mistake.sentence))
    console.print(table)
    for mistake in survey.mistakes:
        if not mistake.case:
            why = f"cannot be tried: {mistake.fault}" if mistake.fault else "not shown"
            print_plain(console, f"{why}  {mistake.anomaly}: {mistake.sentence}")
    cases = "1 case" if survey.cases == 1 else f"{survey.cases} cases"
    print_plain(
        console, f"\n{len(survey.shown)} of {len(survey.mistakes)} mistakes are shown by {cases}"
    )
