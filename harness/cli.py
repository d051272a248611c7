"""The command line. Heavy imports wait until a command runs: `--help` needs no torch."""

import argparse
import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

import harness
from harness.commands import (
    candidates,
    check,
    conformance,
    doctor,
    golden,
    merge,
    mutants,
    report,
    repro,
)
from harness.commands.options import (
    DIVERGED,
    FAULT,
    PASSED,
    STOPPED,
    USAGE,
    fit_to_launcher,
    print_json,
)
from harness.commands.ranks import NoRanks
from harness.commands.unexpected import told_in_full
from harness.outside import BadInput, printable
from harness.ranks.launched import Launched

COMMANDS = {
    "check": check,
    "merge": merge,
    "repro": repro,
    "golden": golden,
    "mutants": mutants,
    "candidates": candidates,
    "conformance": conformance,
    "report": report,
    "doctor": doctor,
}

# Seconds in which what was stopped may end in order.
PATIENCE = 5.0
# And after which one that Python has dropped comes again.
SOON = 0.05
NOT_READ = f"nobody reads what this command prints; so the exit status is {FAULT}"
STATUS = (
    "exit status: 0 all passed; 1 something diverged; 2 bad input; 3 a fault, also if a candidate "
    "supports too few cases to be judged; 4 a golden is missing or damaged; "
    "130 stopped by Ctrl-C or SIGTERM"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status says how it went."""
    options = build_parser().parse_args(arguments)
    if sys.stdout is None:
        print("harness: stdout is closed: nobody would learn what comes out", file=sys.stderr)  # noqa: T201
        return USAGE
    if arguments is None:
        obey_signals()
    try:
        status = _beside_others(options)
        sys.stdout.flush()
        if arguments is None:
            # All is said, and Python ends by itself.
            _on_signals(signal.SIG_IGN)
    except OSError as error:
        # The reader of what we print has gone, or its disk is full.
        if isinstance(error, BrokenPipeError):
            with contextlib.suppress(OSError):
                print(f"harness: {NOT_READ}", file=sys.stderr)  # noqa: T201 - a command speaks
        # What Python has left to say goes nowhere.
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return FAULT
    return status


def _beside_others(options: argparse.Namespace) -> int:
    """Where a launcher has started several of us, one answers and the others have the ranks."""
    try:
        launched = Launched.here()
        if launched and not launched.is_first:
            from harness.ranks.node import follow

            return PASSED if follow(launched) else FAULT
    except BadInput as error:
        print(f"harness: {error}", file=sys.stderr)  # noqa: T201 - a command speaks
        return USAGE
    if not launched:
        return _answer(options)
    try:
        return _answer(options, launched.size)
    finally:
        from harness.ranks.nodes import dismiss

        dismiss()


def _answer(options: argparse.Namespace, ranks: int | None = None) -> int:
    """Run the command, on as many ranks as a launcher has started, if one did."""
    try:
        fit_to_launcher(options, ranks)
        status: int = options.run(options)
    except BrokenPipeError:
        raise
    except SystemExit as left:
        # So does rich where its reader has gone, and its word for it would be that something
        # diverged.
        if left.code == DIVERGED:
            raise BrokenPipeError from None
        raise
    except BadInput as error:
        print(f"harness: {printable(' '.join(str(error).splitlines()))}", file=sys.stderr)  # noqa: T201 - a command speaks
        return USAGE
    except NoRanks as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command speaks
        if options.json:
            print_json({"verdict": "FAULT", "fault": error.summary})
        return FAULT
    except KeyboardInterrupt:
        print("harness: interrupted; every rank is stopped", file=sys.stderr)  # noqa: T201 - a command speaks
        return STOPPED
    except Exception as error:  # noqa: BLE001 - it says nothing of the candidate
        print(f"harness: {told_in_full(error)}", file=sys.stderr)  # noqa: T201 - a command speaks
        if getattr(options, "json", False):
            print_json({"verdict": "FAULT", "fault": f"{type(error).__name__}: {error}"})
        return FAULT
    return status


def obey_signals() -> None:
    """Ctrl-C and a runner that stops us end a command in order, also in the background.

    A shell has what it starts there ignore Ctrl-C, and a runner's time limit may send just that.
    Several at once are one: the second would cut short what the first has begun to end in order.
    """
    last = -math.inf

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal last
        if time.monotonic() - last > PATIENCE:
            last = time.monotonic()
            raise KeyboardInterrupt

    def come_again(ignored: "sys.UnraisableHookArgs") -> None:
        nonlocal last
        if isinstance(ignored.exc_value, KeyboardInterrupt):
            last = -math.inf
            threading.Timer(SOON, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            sys.__unraisablehook__(ignored)

    # Python drops what is raised in a finalizer, or in what it calls before and after a fork.
    sys.unraisablehook = come_again
    _on_signals(interrupt)


def _on_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def build_parser() -> argparse.ArgumentParser:
    """The parser; what it returns has the command to `run`."""
    parser = argparse.ArgumentParser(prog="harness", description=harness.__doc__, epilog=STATUS)
    parser.add_argument("--version", action="version", version=harness.__version__)
    known = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        its = known.add_parser(name, help=command.HELP)
        command.add(its)
        its.set_defaults(run=command.run)
    return parser
