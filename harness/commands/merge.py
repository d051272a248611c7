"""`merge`: put the shards of one campaign together."""

import argparse

from harness.commands.options import answer, json_option, ready_to_report, report_option, status_of

HELP = "add up the shards of one campaign"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "documents", nargs="+", metavar="DOCUMENT", help="a file with what `check --json` printed"
    )
    report_option(parser)
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    ready_to_report(options)

    from rich.console import Console

    from harness.campaign.merge import merge, read_document
    from harness.campaign.table import closing, say, show, show_failures

    summary = merge([(name, read_document(name)) for name in options.documents])
    console = Console(stderr=options.json)
    show(summary, console)
    show_failures(summary, console)
    status = status_of(summary.verdict)
    say(console, f"\n{closing(summary, status)}")
    return answer(options, summary.record(), status)
