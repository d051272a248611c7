"""`check`: judge candidates on generated cases."""

import argparse
import math
from typing import TYPE_CHECKING

from harness.against import PLAIN
from harness.campaign.request import WHOLE, Part, Request
from harness.commands.options import (
    STOPPED,
    UsageError,
    against_option,
    answer,
    campaign_options,
    diagnose_option,
    known_option,
    pool_options,
    read_part,
    read_request,
    ready_to_report,
    report_option,
    status_of,
    step_options,
)
from harness.commands.ranks import open_pool
from harness.commands.side_by_side import pools_for, side_by_side
from harness.importing import without_a_search_for_garbage

if TYPE_CHECKING:
    from rich.console import Console

    from harness.campaign.summary import Summary

HELP = "judge candidates on generated cases"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--candidate",
        action="append",
        metavar="C",
        help="a built-in name, path/to/file.py:NAME or package.module:NAME; you may repeat it; "
        "default: native-gather and native-local",
    )
    parser.add_argument(
        "--shard",
        default="1/1",
        metavar="K/N",
        help="judge only part K of N; `merge` adds the parts up",
    )
    parser.add_argument(
        "--pools",
        default="1",
        metavar="N",
        help="judge on N pools of ranks at once; auto: as many as there are cores, or devices, "
        "for; default: 1",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="start no further case after so many seconds; default: no limit",
    )
    campaign_options(parser, cases=100)
    step_options(parser)
    known_option(parser)
    against_option(parser, PLAIN)
    diagnose_option(parser)
    report_option(parser)
    pool_options(parser)


def examine(
    options: argparse.Namespace,
    request: Request,
    ranks: int,
    part: Part,
    console: "Console",
    *,
    alone: bool = False,
) -> "Summary":
    """Judge a part on ranks of its own, beside all others or alone."""
    with without_a_search_for_garbage():
        from harness.campaign.check import check
        from harness.campaign.supply import require_cases

    with open_pool(options, ranks, request.candidates, WHOLE if alone else part) as pool:
        require_cases(request, pool)
        return check(
            request,
            pool,
            console,
            part,
            options.limit,
            tables=alone,
            diagnoses=options.diagnose,
        )


def run(options: argparse.Namespace) -> int:
    request, ranks = read_request(options)
    part = read_part(options.shard, request.count)
    pools = pools_for(options.pools, request, ranks)
    if pools > 1 and (part.of > 1 or options.nodes > 1):
        raise UsageError(f"--pools={pools}: use it on one host, and without --shard")
    if not options.limit > 0:
        raise UsageError(f"--limit={options.limit:g}: use a number of seconds above zero")

    ready_to_report(options)

    from rich.console import Console

    from harness.campaign.summary import INTERRUPTED
    from harness.campaign.table import closing, say, show

    console = Console(stderr=options.json)
    if pools == 1:
        summary = examine(options, request, ranks, part, console, alone=True)
    else:
        summary = side_by_side(options, request, ranks, pools, examine)
        show(summary, console)
    # What is listed may be forgiven where something passed beside it.
    known = options.known if all(tally.passed for tally in summary.tallies.values()) else "fail"
    status = STOPPED if summary.ended == INTERRUPTED else status_of(summary.verdict, known)
    say(console, f"\n{closing(summary, status)}")
    return answer(options, summary.record(), status)
