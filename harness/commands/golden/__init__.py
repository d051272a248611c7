"""`golden`: cases that last, made, kept and checked."""

import argparse
import sys

from harness.against import PLAIN
from harness.commands.golden import edit, look
from harness.commands.golden.store import DAMAGED
from harness.commands.options import (
    against_option,
    json_option,
    known_option,
    pool_options,
    report_option,
)
from harness.commands.places import places_options
from harness.outside import printable

HELP = "make, check and show the goldens"


def add(parser: argparse.ArgumentParser) -> None:
    known = parser.add_subparsers(required=True, metavar="generate|verify|diff|add|list")

    generate = known.add_parser(
        "generate", help="compute all goldens again; keep stored bits that are within drift"
    )
    generate.add_argument("--accept", action="store_true", help="store bits that changed")
    _reason_option(generate)
    generate.add_argument(
        "--out",
        metavar="DIR",
        help="instead, store in a new folder what a candidate computes on this device",
    )
    generate.add_argument(
        "--dtype",
        default="bf16",
        choices=("fp32", "bf16", "fp16"),
        help="with --out; default: bf16",
    )
    generate.add_argument(
        "--candidate",
        action="append",
        metavar="C",
        help="with --out, whose numbers to store; default: native-gather. Without it, a candidate "
        "whose own step goldens are of, and whose code may run",
    )
    against_option(generate, PLAIN)
    pool_options(generate, ranks=4)
    generate.set_defaults(do=edit.generate)

    verify = known.add_parser(
        "verify", help="check that the store is whole and that candidates agree with it"
    )
    verify.add_argument(
        "--candidate",
        action="append",
        metavar="C",
        help="you may repeat it; default: native-gather and native-local",
    )
    verify.add_argument("--sp", metavar="LIST", help="default: 1,2,4, as far as --ranks allows")
    verify.add_argument(
        "--dtype", metavar="LIST", help="what candidates compute in; default: fp64"
    )
    against_option(verify, None, "golden")
    known_option(verify)
    places_options(verify)
    report_option(verify)
    pool_options(verify, ranks=4)
    verify.set_defaults(do=look.verify)

    diff = known.add_parser("diff", help="show what `generate` would change")
    diff.add_argument(
        "--candidate",
        action="append",
        metavar="C",
        help="one whose own step goldens are of, and whose code may run",
    )
    pool_options(diff)
    diff.set_defaults(do=edit.diff)

    new = known.add_parser("add", help="make a golden from a case")
    new.add_argument("name", metavar="NAME")
    new.add_argument("case", metavar="CASE-LINE")
    new.add_argument(
        "--comment", required=True, metavar="TEXT", help="what is special about this case"
    )
    new.add_argument(
        "--hunts", default="", metavar="LIST", help="mutants that differ from plain training on it"
    )
    new.add_argument("--source", default="", metavar="TEXT", help="where somebody met it")
    new.add_argument("--accept", action="store_true", help="replace the golden of this name")
    _reason_option(new)
    new.add_argument(
        "--candidate", metavar="C", help="with --against self: whose step at sp 1 to ask"
    )
    against_option(new, PLAIN)
    pool_options(new)
    new.set_defaults(do=edit.add)

    shown = known.add_parser("list", help="list every golden and its purpose")
    json_option(shown)
    shown.set_defaults(do=look.show)

    for command in known.choices.values():
        command.add_argument("--store", default="golden", metavar="DIR", help="default: golden")


def _reason_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reason",
        default="",
        metavar="TEXT",
        help="with --accept: why the stored numbers may change by more than drift",
    )


def run(options: argparse.Namespace) -> int:
    from harness.golden import BadGolden

    try:
        status: int = options.do(options)
    except BadGolden as error:
        print(f"harness: {printable(' '.join(str(error).splitlines()))}", file=sys.stderr)  # noqa: T201
        return DAMAGED
    return status
