"""`mutants`: how many known bugs the check finds, and names."""

import argparse
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harness.against import PLAIN
from harness.campaign.lot import WHOLE, Part
from harness.campaign.request import Request
from harness.commands.options import (
    DIVERGED,
    PASSED,
    against_option,
    answer,
    campaign_options,
    pool_options,
    read_keys,
    read_request,
    ready_to_report,
    report_option,
)
from harness.commands.places import open_places, places_options
from harness.commands.ranks import open_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.detection import Trial

HELP = "show how many known bugs the check finds and names"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only",
        default="mutants,benign",
        metavar="LIST",
        help="keys such as B14, stages such as labels, or the words mutants and benign; default: "
        "mutants,benign",
    )
    places_options(parser)
    parser.add_argument("--shrink", action="store_true", help="shrink each failure, up to 60 s")
    parser.add_argument(
        "--required-only",
        action="store_true",
        help="keep back what a candidate need not show, as if a mutant were somebody else's step",
    )
    campaign_options(parser, cases=200)
    against_option(parser, PLAIN)
    report_option(parser)
    # As many ranks as tests have; and some mutants hang, which is soon seen.
    pool_options(parser, ranks=4, deadline=10.0)
    # Some mutants change masks, which other kernels do not take, or the reduction, which a wrapper
    # does itself.
    parser.set_defaults(candidate=None, kernel="eager,sdpa", wrapper="none", set=[])


def run(options: argparse.Namespace) -> int:
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
        open_places(open_trials, asked, options, ranks, told.read, len(keys)) as places,
        Watch(console, len(chosen) + len(variants)) as watch,
    ):
        power = score(chosen, variants, places, watch, against=request.against)
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
    options: argparse.Namespace, request: Request, ranks: int, worker: Part = WHOLE
) -> "Iterator[Callable[[str], dict[str, Any]]]":
    """Ranks, ready to try what has a key in one of the banks."""
    from harness.campaign.supply import draw
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
