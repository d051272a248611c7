"""The command line: parse the arguments, run one command, and return its exit status.

1. The modules of the commands are imported only when needed, so that `--help` needs no torch.
2. An error becomes a message on stderr and an exit status, never a traceback.
3. In a world, where a launcher such as torchrun has started several processes, rank 0 runs the
   command, and the other processes provide its ranks.
"""

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
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
    print_message,
)
from harness.commands.values import UsageError, as_text
from harness.engine.no_ranks import NoRanks
from harness.untrusted import BadInput, printable

Command = Callable[..., int | None]

# Seconds after an interrupt in which further ones are ignored, so that the command can clean up.
PATIENCE = 5.0
# Seconds until an interrupt that Python has dropped is sent again.
RETRY_DELAY = 0.05
CLOSED_PIPE = f"no reader is left for what this command prints; so the exit status is {FAULT}"
STATUS = (
    "exit status: 0 all passed; 1 something diverged; 2 bad input; 3 a fault, also if a candidate "
    "supports too few cases to be judged; 4 a golden is missing or damaged; "
    "130 stopped by Ctrl-C or SIGTERM"
)
# A command's module is imported when the command, or its help page, is used.
COMMANDS = {
    "check": "Judge candidates on generated cases.",
    "merge": "Add up the shards of one campaign.",
    "repro": "Run one case, fully traced, and explain the outcome.",
    "mutants": "Show how many known bugs the check finds and names, or which your own cases show.",
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
    # If an option is given twice, the last one counts. Only --no-diagnose negates an option.
    default_parameter=Parameter(negative=(), allow_repeating=True, show_default=as_text),
    print_error=False,
    exit_on_error=False,
)
# The help of options is Markdown, which joins their lines. It would be too slow for the page that
# lists the commands.
for name, purpose in COMMANDS.items():
    app.command(f"harness.commands.{name}:run", name=name, help=purpose, help_format="markdown")
for name, purpose in GROUPS.items():
    app.command(f"harness.commands.{name}:app", name=name, help=purpose)
app.register_install_completion_command()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; by default with the arguments of the process."""
    if sys.stdout is None:
        print_message("stdout is closed, so no result could be read")
        return USAGE
    try:
        status = _parse_and_run(arguments)
        sys.stdout.flush()
        if arguments is None:
            # The output is complete: a late interrupt must not change the exit status.
            _set_signal_handler(signal.SIG_IGN)
    except OSError as error:
        # The reader has closed the pipe that we print to, or the disk is full.
        if isinstance(error, BrokenPipeError):
            with contextlib.suppress(OSError):
                print_message(CLOSED_PIPE)
        # Python flushes both streams when it exits: without this it would print another error.
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return FAULT
    return status


def _parse_and_run(arguments: Sequence[str] | None) -> int:
    try:
        command, bound = read(sys.argv[1:] if arguments is None else arguments)
        if arguments is None:
            obey_signals()
        return _run_in_world(command, bound)
    except BadInput as error:
        print_message(printable(" ".join(str(error).splitlines())))
        return USAGE


def read(arguments: Sequence[str]) -> tuple[Command, BoundArguments]:
    """Parse a command line into the function to call and its arguments, defaults included."""
    try:
        command, bound, _ = app.parse_args(arguments)
    except exceptions.CycloptsError as error:
        if isinstance(error.__cause__, BadInput):
            raise error.__cause__ from None
        raise UsageError(_describe(error)) from None
    if command.__name__ == "help_print" and not {*arguments} & {*app.help_flags}:
        raise UsageError(f"COMMAND: is missing; see `{' '.join(('harness', *arguments))} --help`")
    bound.apply_defaults()
    return command, bound


def _describe(error: exceptions.CycloptsError) -> str:
    """Say in one sentence which word is wrong and why, and which known word is similar."""
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
    from difflib import get_close_matches

    similar = get_close_matches(word, known, 1)
    page = " ".join(("harness", *(error.command_chain or ()), "--help"))
    return f"{word}: {why}; " + (f"did you mean {similar[0]}?" if similar else f"see `{page}`")


def _run_in_world(command: Command, bound: BoundArguments) -> int:
    """Run the command, unless this process is in a world and not its first: then serve ranks."""
    if isinstance(getattr(command, "__self__", None), App):
        # A page of help needs no ranks, and should not wait for imports.
        return _run(command, bound)
    from harness.worlds.world import World

    world = World.here()
    if not world:
        return _run(command, bound)
    if not world.is_first:
        from harness.worlds.host_keeper import serve_ranks

        return PASSED if serve_ranks(world) else FAULT
    try:
        return _run(command, bound, world.size)
    finally:
        from harness.worlds.other_hosts import release_hosts

        release_hosts()


def _run(command: Command, bound: BoundArguments, launched_ranks: int | None = None) -> int:
    """Run the command and return its exit status, also if it raises; bad input is raised on."""
    options = bound.arguments.get("options", Output())
    try:
        if "options" in bound.arguments:
            bound.arguments["options"] = fit_to_launcher(options, launched_ranks)
        return command(*bound.args, **bound.kwargs) or PASSED
    except (BrokenPipeError, BadInput):
        raise
    except SystemExit as ended:
        # rich exits with 1 if its reader has closed the pipe, but our 1 means DIVERGED.
        if ended.code == DIVERGED:
            raise BrokenPipeError from None
        raise
    except NoRanks as error:
        print(error, file=sys.stderr)  # noqa: T201 - this message is whole as it is
        if options.json:
            print_json({"verdict": "FAULT", "fault": error.summary})
        return FAULT
    except KeyboardInterrupt:
        print_message("interrupted; every rank is stopped")
        return STOPPED
    except Exception as error:  # noqa: BLE001 - a bug of ours is no verdict on the candidate
        from harness.unexpected import describe_unexpected

        print_message(describe_unexpected(error))
        if options.json:
            print_json({"verdict": "FAULT", "fault": f"{type(error).__name__}: {error}"})
        return FAULT


def obey_signals() -> None:
    """Make SIGINT and SIGTERM raise `KeyboardInterrupt`, so that a command can clean up.

    A shell starts background processes with SIGINT ignored, yet the time limit of a runner may
    send just that signal. Several signals within PATIENCE count as one: a second exception would
    abort the cleanup that the first one began.
    """
    last = -math.inf

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal last
        if time.monotonic() - last > PATIENCE:
            last = time.monotonic()
            raise KeyboardInterrupt

    def retry_dropped(ignored: "sys.UnraisableHookArgs") -> None:
        nonlocal last
        if isinstance(ignored.exc_value, KeyboardInterrupt):
            last = -math.inf
            threading.Timer(RETRY_DELAY, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            sys.__unraisablehook__(ignored)

    # Python drops an exception that is raised in a finalizer or in a callback around a fork.
    sys.unraisablehook = retry_dropped
    _set_signal_handler(interrupt)


def _set_signal_handler(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers,
) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)
