"""`check`: judge candidates on generated cases."""

import argparse
import math

from harness.against import PLAIN
from harness.commands.options import (
    STOPPED,
    UsageError,
    against_option,
    campaign_options,
    known_option,
    pool_options,
    print_json,
    read_part,
    read_request,
    status_of,
    step_options,
)
from harness.commands.ranks import open_pool

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
    pool_options(parser)


def run(options: argparse.Namespace) -> int:
    request, ranks = read_request(options)
    part = read_part(options.shard, request.count)
    if not options.limit > 0:
        raise UsageError(f"--limit={options.limit:g}: use a number of seconds above zero")

    from rich.console import Console

    from harness.campaign.check import check
    from harness.campaign.summary import INTERRUPTED
    from harness.campaign.table import closing, say

    console = Console(stderr=options.json)
    with open_pool(options, ranks, request.candidates) as pool:
        summary = check(request, pool, console, part, options.limit)
    # What is listed may be forgiven where something passed beside it.
    known = options.known if all(tally.passed for tally in summary.tallies.values()) else "fail"
    status = STOPPED if summary.ended == INTERRUPTED else status_of(summary.verdict, known)
    say(console, f"\n{closing(summary, status)}")
    if options.json:
        print_json(summary.record())
    return status
