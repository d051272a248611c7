"""The command line. Heavy imports wait until a command runs: `--help` needs no torch."""

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from inspect import BoundArguments
from types import FrameType

from cyclopts import App, Parameter, exceptions

import harness
from harness.commands.options import (
    DIVERGED,
    FAULT,
    PASSED,
    STOPPED,
    USAGE,
    Output,
    fit_to_launcher,
    print_json,
)
from harness.commands.values import UsageError, as_text
from harness.engine.no_ranks import NoRanks
from harness.ranks.world import World
from harness.unexpected import told_in_full
from harness.untrusted import BadInput, printable

Command = Callable[..., int | None]

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
# Each is imported when it is asked for.
COMMANDS = {
    "check": "Judge candidates on generated cases.",
    "merge": "Add up the shards of one campaign.",
    "repro": "Run one case, fully traced, and explain the outcome.",
    "mutants": "Show how many known bugs the check finds and names.",
    "conformance": "Judge published packages, and write the tables.",
    "report": "Make HTML pages of documents and bundles.",
    "doctor": "Say what can run on this machine, what cannot, and why.",
}
GROUPS = {
    "golden": "Make, check and show the goldens.",
    "candidates": "List published packages, and install what their ranks need.",
}
app = App(
    name="harness",
    version=harness.__version__,
    help=harness.__doc__,
    help_epilogue=STATUS,
    help_format="plaintext",
    # The last counts where an option is given twice; one option has a form that undoes it.
    default_parameter=Parameter(negative=(), allow_repeating=True, show_default=as_text),
    print_error=False,
    exit_on_error=False,
)
# Markdown joins lines, and is too slow for the page that lists commands.
for name, purpose in COMMANDS.items():
    app.command(f"harness.commands.{name}:run", name=name, help=purpose, help_format="markdown")
for name, purpose in GROUPS.items():
    app.command(f"harness.commands.{name}:app", name=name, help=purpose)
app.register_install_completion_command()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status says how it went."""
    if sys.stdout is None:
        print("harness: stdout is closed: nobody would learn what comes out", file=sys.stderr)  # noqa: T201
        return USAGE
    try:
        status = _obeyed(arguments)
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


def _obeyed(arguments: Sequence[str] | None) -> int:
    try:
        asked = read(sys.argv[1:] if arguments is None else arguments)
        if arguments is None:
            obey_signals()
        return _beside_others(*asked)
    except BadInput as error:
        print(f"harness: {printable(' '.join(str(error).splitlines()))}", file=sys.stderr)  # noqa: T201 - a command speaks
        return USAGE


def read(arguments: Sequence[str]) -> tuple[Command, BoundArguments]:
    """The function that a command line asks for, and what it is given."""
    try:
        command, given, _ = app.parse_args(arguments)
    except exceptions.CycloptsError as error:
        if isinstance(error.__cause__, BadInput):
            raise error.__cause__ from None
        raise UsageError(_sentence(error)) from None
    if command.__name__ == "help_print" and not {*arguments} & {*app.help_flags}:
        raise UsageError(f"COMMAND: is missing; see `{' '.join(('harness', *arguments))} --help`")
    given.apply_defaults()
    return command, given


def _sentence(error: exceptions.CycloptsError) -> str:
    """Which word cannot be, why, and what is near to it."""
    word, why, known = str(error), "cannot be read", list[str]()
    if isinstance(error, exceptions.UnknownOptionError):
        word, why = error.token.keyword or error.token.value, "there is no such option"
        known = [name for argument in error.argument_collection for name in argument.names]
    elif isinstance(error, exceptions.UnknownCommandError) and error.unused_tokens and error.app:
        (word, *_), why, known = error.unused_tokens, "there is no such command", [*error.app]
    elif isinstance(error, exceptions.UnusedCliTokensError) and error.unused_tokens:
        (word, *_), why = error.unused_tokens, "is one too many"
    elif isinstance(error, exceptions.MissingArgumentError) and error.argument:
        word, why = error.argument.name, "needs a value"
    elif isinstance(error, exceptions.CoercionError) and error.token:
        word, why = f"{error.token.keyword}={error.token.value}", "takes no value"
    near = get_close_matches(word, known, 1)
    page = " ".join(("harness", *(error.command_chain or ()), "--help"))
    return f"{word}: {why}; " + (f"did you mean {near[0]}?" if near else f"see `{page}`")


def _beside_others(command: Command, given: BoundArguments) -> int:
    """Where a launcher has started several of us, one answers and the others have the ranks."""
    world = World.here()
    if not world or isinstance(getattr(command, "__self__", None), App):
        return _answer(command, given)
    if not world.is_first:
        from harness.ranks.host_keeper import follow

        return PASSED if follow(world) else FAULT
    try:
        return _answer(command, given, world.size)
    finally:
        from harness.ranks.other_hosts import dismiss

        dismiss()


def _answer(command: Command, given: BoundArguments, ranks: int | None = None) -> int:
    """Run the command, on as many ranks as a launcher has started, if one did."""
    options = given.arguments.get("options", Output())
    try:
        if "options" in given.arguments:
            given.arguments["options"] = fit_to_launcher(options, ranks)
        return command(*given.args, **given.kwargs) or PASSED
    except (BrokenPipeError, BadInput):
        raise
    except SystemExit as left:
        # So does rich where its reader has gone, and its word for it would be that something
        # diverged.
        if left.code == DIVERGED:
            raise BrokenPipeError from None
        raise
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
        if options.json:
            print_json({"verdict": "FAULT", "fault": f"{type(error).__name__}: {error}"})
        return FAULT


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
