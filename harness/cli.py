"""The command line. Heavy imports wait until a command runs: `--help` needs no torch."""

import argparse
import sys
from collections.abc import Sequence

import harness
from harness.campaign import EmptyShard
from harness.case import InvalidCase
from harness.commands import (
    candidates,
    check,
    conformance,
    doctor,
    golden,
    join,
    merge,
    mutants,
    repro,
)
from harness.commands.options import USAGE, UsageError

COMMANDS = {
    "check": check,
    "merge": merge,
    "repro": repro,
    "golden": golden,
    "mutants": mutants,
    "candidates": candidates,
    "conformance": conformance,
    "doctor": doctor,
    "join": join,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status says how it went."""
    options = build_parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except _bad_input() as error:
        print(f"harness: {' '.join(str(error).splitlines())}", file=sys.stderr)  # noqa: T201 - a command speaks
        return USAGE
    except KeyboardInterrupt:
        print("harness: interrupted; every rank is stopped", file=sys.stderr)  # noqa: T201
        return 130
    return status


def build_parser() -> argparse.ArgumentParser:
    """The parser; what it returns has the command to `run`."""
    parser = argparse.ArgumentParser(prog="harness", description=harness.__doc__)
    parser.add_argument("--version", action="version", version=harness.__version__)
    known = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        its = known.add_parser(name, help=command.HELP)
        command.add(its)
        its.set_defaults(run=command.run)
    return parser


def _bad_input() -> tuple[type[Exception], ...]:
    errors: list[type[Exception]] = [UsageError, InvalidCase, EmptyShard]
    for module, name in (
        ("candidates.environment", "CannotInstall"),
        ("candidates.environment", "NotInstalled"),
        ("candidates.published", "BadFolder"),
        ("candidates.registry", "UnknownCandidate"),
        ("ranks.node", "Refused"),
        ("ranks.pool", "NotAtHome"),
        ("ranks.pool", "TooFewRanks"),
        ("conformance.document", "BadResults"),
        ("report.bundle", "BadBundle"),
        ("report.merge", "BadDocument"),
    ):
        loaded = sys.modules.get(f"harness.{module}")
        if loaded:
            errors.append(getattr(loaded, name))
    return tuple(errors)
