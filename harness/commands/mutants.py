"""`mutants`: how many known bugs the check finds, and names."""

from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

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
    ready_to_report,
)
from harness.commands.ranks import open_pool
from harness.commands.values import Count, Deadline, Ranks, Usual
from harness.engine.lot import WHOLE, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.detection import Trial


@dataclass(frozen=True, kw_only=True)
class Mutants(Report, Pools, Campaign):
    """What is tried, and what is told of it."""

    only: Annotated[str, Parameter(metavar="LIST")] = "mutants,benign"
    """keys such as B14, stages such as labels, or the words mutants and benign"""
    shrink: bool = False
    """shrink each failure, up to 60 s"""
    required_only: bool = False
    """keep back what a candidate need not show, as if a mutant were somebody else's step"""
    cases: Count = 200
    ranks: Ranks | None = Usual(4)
    """ranks in the pool"""
    # Some mutants hang, which is soon seen.
    deadline: Deadline = 10.0


def run(*, options: Mutants = Mutants()) -> int:
    # Some mutants change masks, which other kernels do not take, or the reduction, which a wrapper
    # does itself.
    request, ranks = read_request(options)
    ready_to_report(options)

    from rich.console import Console

    from harness.candidates.bank import STAGES
    from harness.candidates.own import benign, mutants
    from harness.detection import Watch, score, show

    stages = {
        stage: [key for key, mutant in mutants.BANK.items() if mutant.stage == stage]
        for stage in STAGES
    }
    keys = read_keys(
        options.only, {**stages, "mutants": mutants.BANK.keys(), "benign": benign.BANK.keys()}
    )
    chosen = [key for key in keys if key in mutants.BANK]
    variants = [key for key in keys if key in benign.BANK]
    console, told = Console(stderr=options.json), Told()
    asked = options, request, ranks
    with (
        open_engine(open_trials, asked, options, ranks, told.read, len(keys)) as engine,
        Watch(console, len(chosen) + len(variants)) as watch,
    ):
        power = score(chosen, variants, engine, watch, against=request.against)
    show(power, console)
    document = {**power.record(), "placement": told.placement}
    return answer(options, document, PASSED if power.passed else DIVERGED)


class Told:
    """What pools tell of each trial, and of where they are."""

    def __init__(self) -> None:
        self.placement: dict[str, str] = {}

    def read(self, record: dict[str, Any]) -> "Trial":
        from harness.detection import Trial

        self.placement = self.placement or record["placement"]
        trial = record["trial"]
        return Trial(**{**trial, "unmet": tuple(trial["unmet"])})


@contextmanager
def open_trials(
    options: Mutants, request: Request, ranks: int, worker: Part = WHOLE
) -> "Iterator[Callable[[str], dict[str, Any]]]":
    """Ranks, ready to try what has a key in one of the banks."""
    from harness.campaign.case_source import draw
    from harness.candidates.own import benign, mutants
    from harness.detection import Trier
    from harness.judge import Session

    with open_pool(options, ranks, (), worker) as pool:
        pool.start()
        trier = Trier(
            cases=draw(request, ranks),
            session=Session(pool),
            shrinks=options.shrink,
            required_only=options.required_only,
            against=request.against,
        )
        pool.require_ready()

        def attempt(key: str) -> dict[str, Any]:
            trial = trier.attempt(mutants.BANK.get(key) or benign.BANK[key])
            return {"trial": asdict(trial), "placement": pool.place}

        yield attempt
