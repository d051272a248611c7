"""`golden`: cases that last, made, kept and checked."""

import argparse
import sys

from harness.commands.golden import edit, look
from harness.commands.golden.store import DAMAGED
from harness.commands.options import json_option, pool_options

HELP = "make, check and show the goldens"


def add(parser: argparse.ArgumentParser) -> None:
    known = parser.add_subparsers(required=True, metavar="generate|verify|diff|add|list")

    generate = known.add_parser("generate", help="compute all again; stored bits stay")
    generate.add_argument("--accept", action="store_true", help="put moved bits into their place")
    _reason_option(generate)
    generate.add_argument(
        "--out", metavar="DIR", help="record what a candidate computes on this device instead"
    )
    generate.add_argument("--dtype", default="bf16", choices=("fp32", "bf16", "fp16"))
    generate.add_argument("--candidate", default="native-gather", metavar="C")
    pool_options(generate, ranks=4)
    generate.set_defaults(do=edit.generate)

    verify = known.add_parser("verify", help="the store is whole, and candidates agree with it")
    verify.add_argument(
        "--candidate",
        action="append",
        metavar="C",
        help="may be repeated; default: native-gather and native-local",
    )
    verify.add_argument("--sp", default="1,2,4", metavar="LIST", help="default: 1,2,4")
    pool_options(verify, ranks=4)
    verify.set_defaults(do=look.verify)

    diff = known.add_parser("diff", help="what would move if all were computed again")
    diff.set_defaults(do=edit.diff)

    new = known.add_parser("add", help="make a golden of a case")
    new.add_argument("name", metavar="NAME")
    new.add_argument("case", metavar="CASE-LINE")
    new.add_argument("--comment", required=True, metavar="TEXT", help="what is peculiar to it")
    new.add_argument("--hunts", default="", metavar="LIST", help="mutants that it tells apart")
    new.add_argument("--source", default="", metavar="TEXT", help="where it was met")
    new.add_argument("--accept", action="store_true", help="put it in the place of another")
    _reason_option(new)
    new.set_defaults(do=edit.add)

    shown = known.add_parser("list", help="every golden, and what it is there for")
    shown.set_defaults(do=look.show)

    for command in known.choices.values():
        command.add_argument("--store", default="golden", metavar="DIR", help="default: golden")
        if command not in (generate, verify):
            json_option(command)


def _reason_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reason", default="", metavar="TEXT", help="why what is stored may change its meaning"
    )


def run(options: argparse.Namespace) -> int:
    from harness.golden import BadGolden

    try:
        status: int = options.do(options)
    except BadGolden as error:
        print(f"harness: {' '.join(str(error).splitlines())}", file=sys.stderr)  # noqa: T201
        return DAMAGED
    return status
