"""`mutants`: how many known bugs the check finds, and names."""

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from harness.against import PLAIN
from harness.commands.options import (
    DIVERGED,
    PASSED,
    UsageError,
    against_option,
    answer,
    campaign_options,
    pool_options,
    read_keys,
    read_request,
    ready_to_report,
    report_option,
)
from harness.commands.ranks import open_pool

if TYPE_CHECKING:
    from harness.compare import Comparison
    from harness.ranks.pool import RankPool

HELP = "show how many known bugs the check finds and names"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only",
        default="mutants,benign",
        metavar="LIST",
        help="keys such as B14, stages such as labels, or the words mutants and benign; default: "
        "mutants,benign",
    )
    parser.add_argument(
        "--pools", type=int, default=1, metavar="N", help="rank pools to use at once; default: 1"
    )
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
    if not 1 <= options.pools <= 64:
        raise UsageError(f"--pools={options.pools}: use a number from 1 to 64")

    ready_to_report(options)

    from rich.console import Console

    from harness.campaign.supply import draw
    from harness.candidates.bank import STAGES
    from harness.candidates.own import benign, mutants
    from harness.detection import Watch, measure, show
    from harness.failure.smallest import smallest

    stages = {
        stage: [key for key, mutant in mutants.BANK.items() if mutant.stage == stage]
        for stage in STAGES
    }
    keys = read_keys(
        options.only, {**stages, "mutants": mutants.BANK.keys(), "benign": benign.BANK.keys()}
    )
    console = Console(stderr=options.json)
    with ExitStack() as stack:
        pools = [stack.enter_context(open_pool(options, ranks)) for _ in range(options.pools)]
        for pool in pools:
            pool.start()
        batch = draw(request, ranks)
        for pool in pools:
            pool.require_ready()
        chosen = [mutants.BANK[key] for key in keys if key in mutants.BANK]
        variants = [benign.BANK[key] for key in keys if key in benign.BANK]

        def shrink(failure: "Comparison", pool: "RankPool") -> "Comparison":
            return smallest(failure, pool, batch[: batch.index(failure.case)]).smallest

        with Watch(console, len(chosen) + len(variants)) as watch:
            power = measure(
                chosen,
                variants,
                batch,
                pools,
                shrink if options.shrink else None,
                watch,
                required_only=options.required_only,
                against=request.against,
            )
        show(power, console)
        document = {**power.record(), "placement": pools[0].place}
    return answer(options, document, PASSED if power.passed else DIVERGED)
