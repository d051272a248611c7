"""`join`: give a pool on another host the ranks of this one."""

import argparse
import os
import sys

from harness.commands.options import FAULT, PASSED, UsageError

HELP = "run ranks on this host for a command with --nodes on another host"


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run ranks on this host for a command with --nodes on another host, until that command "
        "ends. HARNESS_TOKEN must be the same on both hosts. The other host prints the line to "
        "run here."
    )
    parser.add_argument("endpoint", metavar="HOST:PORT", help="the --endpoint of that command")


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
