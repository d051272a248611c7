"""`join`: give a pool on another host the ranks of this one."""

import argparse
import os
import sys

from harness.commands.options import FAULT, PASSED, UsageError

HELP = "run ranks here for `check --nodes` on another host"


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run ranks here for a command with --nodes on another host, until that one is done. "
        "HARNESS_TOKEN must hold the same token as there; the line to run is printed there."
    )
    parser.add_argument("endpoint", metavar="HOST:PORT", help="as given to --endpoint there")


def run(options: argparse.Namespace) -> int:
    from harness.ranks.node import Node
    from harness.ranks.worker import TOKEN

    token = os.environ.get(TOKEN)
    if not token:
        raise UsageError(f"{TOKEN} is not set: run the line that the first host prints")
    done = Node(options.endpoint, token).serve()
    said = "is done" if done else "is gone"
    print(f"harness: the controller {said}; every rank here has ended", file=sys.stderr)  # noqa: T201
    return PASSED if done else FAULT
