"""`mutants`: count how many known bugs the check finds, and how many it names right.

With a step that has a recipe: which mistakes in such a step would its cases show?
"""

from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from harness.against import names_recipe
from harness.campaign.request import Request
from harness.commands.campaign_request import read_keys, read_request
from harness.commands.engines import open_engine
from harness.commands.options import (
    DIVERGED,
    PASSED,
    Campaign,
    Pools,
    Report,
    answer,
    require_writable_report,
    status_of,
)
from harness.commands.ranks import open_pool
from harness.commands.values import Count, Deadline, Default, Ranks, UsageError
from harness.engine.lot import WHOLE, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.detection import Trial


@dataclass(frozen=True, kw_only=True)
class Mutants(Report, Pools, Campaign):
    """The options of `mutants`."""

    only: Annotated[str, Parameter(metavar="LIST")] = "mutants,benign"
    """keys such as B14, stages such as labels, or the words mutants and benign"""
    shrink: bool = False
    """shrink each failure, up to 60 s"""
    required_only: bool = False
    """keep back what a candidate need not show, as if a mutant were somebody else's step"""
    cases: Count = 200
    ranks: Ranks | None = Default(4)
    """ranks in the pool"""
    # Short, because some mutants hang.
    deadline: Deadline = 10.0


Own = Annotated[
    str | None,
    Parameter(
        name="STEP",
        help="path/to/file.py:NAME of a step with a recipe; its plain training is done with one "
        "mistake at a time, to show which of them the cases bring to light",
    ),
]


def run(step: Own = None, /, *, options: Mutants = Mutants()) -> int:
    if step is not None:
        return _try_own(step, options)
    # Kernels and wrappers are not drawn: some mutants change masks, which the other kernels do not
    # take, or the reduction, which a wrapper does itself.
    request, ranks = read_request(options)
    if names_recipe(request.against):
        raise UsageError(
            f"--against={request.against}: mutants are of the harness's own model; use plain or "
            "self"
        )
    require_writable_report(options)

    from rich.console import Console

    from harness.candidates.bank import STAGES
    from harness.candidates.own import benign, mutants
    from harness.detection import TrialProgress, score, show

    stages = {
        stage: [key for key, mutant in mutants.BANK.items() if mutant.stage == stage]
        for stage in STAGES
    }
    keys = read_keys(
        options.only, {**stages, "mutants": mutants.BANK.keys(), "benign": benign.BANK.keys()}
    )
    chosen = [key for key in keys if key in mutants.BANK]
    variants = [key for key in keys if key in benign.BANK]
    console, reader = Console(stderr=options.json), TrialReader()
    asked = options, request, ranks
    with (
        open_engine(open_trials, asked, options, ranks, reader.read, len(keys)) as engine,
        TrialProgress(console, len(chosen) + len(variants)) as watch,
    ):
        power = score(chosen, variants, engine, watch, against=request.against)
    show(power, console)
    document = {**power.record(), "placement": reader.placement}
    return answer(options, document, PASSED if power.passed else DIVERGED)


def _try_own(step: str, options: Mutants) -> int:
    """Try the mistakes of a step with a recipe on its own cases."""
    usual = Mutants()
    for name in ("only", "shrink", "required_only", "pools", "on", "against", "report"):
        if getattr(options, name) != getattr(usual, name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option}: is for the bank of mutants; leave it out beside {step}")
    request, ranks = read_request(options, (step,))

    from rich.console import Console

    from harness.campaign.case_source import require_cases
    from harness.candidates import locate
    from harness.detection.mistakes import try_mistakes
    from harness.detection.survey_table import SurveyProgress, show_survey
    from harness.judge import Session

    console = Console(stderr=options.json)
    with open_pool(options, ranks, (step,)) as pool:
        named = locate(step)
        if not pool.has_recipe(named):
            raise UsageError(f"{step} has no recipe, and so no mistakes are known of it")
        require_cases(request, pool)
        survey = try_mistakes(request, Session(pool), SurveyProgress(console))
    show_survey(survey, console)
    return answer(options, survey.record(), status_of(survey.verdict))


class TrialReader:
    """Reads the records that pools send; it keeps the placement of the first one."""

    def __init__(self) -> None:
        self.placement: dict[str, str] = {}

    def read(self, record: dict[str, Any]) -> "Trial":
        """Return the trial of a record that `open_trials` made."""
        from harness.detection import Trial

        self.placement = self.placement or record["placement"]
        trial = record["trial"]
        return Trial(**{**trial, "unmet": tuple(trial["unmet"])})


@contextmanager
def open_trials(
    options: Mutants, request: Request, ranks: int, worker: Part = WHOLE
) -> "Iterator[Callable[[str], dict[str, Any]]]":
    """Open ranks and yield a function that tries the mutant or benign variant with a key."""
    from harness.campaign.case_source import draw
    from harness.candidates.own import benign, mutants
    from harness.detection import Trier
    from harness.judge import Session

    with open_pool(options, ranks, (), worker) as pool:
        pool.start()
        triers: dict[str, Trier] = {}

        def within(limits: str) -> Trier:
            """Return what tries candidates with these limits; all of them see the same cases."""
            return triers.setdefault(
                limits,
                Trier(
                    cases=draw(request, ranks, limits),
                    session=Session(pool),
                    shrinks=options.shrink,
                    required_only=options.required_only,
                    against=request.against,
                ),
            )

        within("")
        pool.require_ready()

        def attempt(key: str) -> dict[str, Any]:
            entry = mutants.BANK.get(key) or benign.BANK[key]
            return {"trial": asdict(within(entry.limits).attempt(entry)), "placement": pool.place}

        yield attempt
