"""Parts of one campaign, judged side by side: a process for each, with ranks of its own."""

import argparse
import ctypes
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from harness.campaign.request import WHOLE, Part, Request
from harness.commands.options import UsageError
from harness.commands.ranks import NoRanks
from harness.commands.unexpected import told_in_full
from harness.importing import SAFE_PATH
from harness.outside import BadInput

if TYPE_CHECKING:
    from harness.campaign.summary import Summary

# A pool is worth its start if it has so many cases.
WORTH = 25
# What a part may come to instead of a summary, followed by what is to be said of it.
REFUSED, NO_RANKS = "refused", "no ranks"
# As the kernel's header has it.
PR_SET_PDEATHSIG = 1

# Judges a part, given what was asked for, the number of ranks, which part, and where to speak.
Judge = Callable[..., "Summary"]
Processes = dict[Connection, BaseProcess]


def pools_for(text: str, request: Request, ranks: int) -> int:
    """How many pools `--pools` asks for; `auto` has a core or a device for each rank."""
    if text != "auto":
        if not text.isdecimal() or not 0 < int(text) <= request.count:
            raise UsageError(
                f"--pools={text}: use auto, or a number from 1 to --cases={request.count}"
            )
        return int(text)
    from harness.ranks.device import at_hand

    kind, devices = at_hand()
    there = len(os.sched_getaffinity(0)) if kind == "cpu" else devices
    return max(1, min(there // ranks, request.count // WORTH))


def side_by_side(
    options: argparse.Namespace, request: Request, ranks: int, pools: int, judge: Judge
) -> "Summary":
    """The sum of all parts, each judged by a process of its own."""
    from harness.campaign.merge import merge
    from harness.campaign.summary import Summary

    started = time.monotonic()
    asked = options, request, ranks
    with _processes(judge, asked, pools) as processes:
        told, asked_to_end = _told(processes)
    for what, text, summary in (each for each in told if isinstance(each, list)):
        raise BadInput(text) if what == REFUSED else NoRanks(text, summary)
    if not told and asked_to_end:
        raise KeyboardInterrupt
    if not told:
        raise RuntimeError(f"none of {pools} processes came to its end")
    parts = [(f"part {number}", Summary.from_record(each)) for number, each in enumerate(told)]
    summary = replace(merge(parts), seconds=round(time.monotonic() - started, 3))
    # Nobody is told in how many parts it was judged, if none is missing.
    return summary if summary.missing else replace(summary, of=WHOLE.of, shards=(WHOLE.number,))


@contextmanager
def _processes(judge: Judge, asked: tuple[Any, ...], pools: int) -> Iterator[Processes]:
    """One for each part, by the end of the pipe on which it tells what it came to."""
    # What they import and start must be theirs alone.
    context = multiprocessing.get_context("spawn")
    processes: Processes = {}
    os.environ |= SAFE_PATH
    # Begun beforehand, because it would unblock what is blocked here.
    resource_tracker.ensure_running()
    # A Ctrl-C at the terminal is for us alone; we ask them to end in order.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        for number in range(1, pools + 1):
            ours, theirs = context.Pipe(duplex=False)
            words = judge, (*asked, Part(number, pools)), os.getpid(), theirs
            processes[ours] = context.Process(target=_part, args=words)
            processes[ours].start()
            theirs.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield processes
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for connection, process in processes.items():
            connection.close()
            if process.pid is not None:
                # It has told all, or nobody waits for it any more.
                process.kill()
                process.join()


def _told(processes: Processes) -> tuple[list[Any], bool]:
    """What each part came to that came to its end, and whether somebody asked them to end."""
    told: list[Any] = []
    waiting, asked_to_end = set(processes), False
    while waiting:
        try:
            for connection in wait(waiting):
                assert isinstance(connection, Connection)
                waiting.remove(connection)
                with suppress(EOFError):
                    told.append(json.loads(connection.recv_bytes()))
        except KeyboardInterrupt:
            if asked_to_end:
                raise
            # They tell what they know by then.
            asked_to_end = True
            for connection in waiting:
                processes[connection].terminate()
    return told, asked_to_end


def _part(judge: Judge, asked: tuple[Any, ...], parent: int, connection: Connection) -> None:
    """One process: judge a part, tell what it came to, and end."""
    from rich.console import Console

    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return
    # Of several lines that move none could be read.
    file = sys.stderr if asked[0].json else sys.stdout
    console = Console(file=file, force_terminal=False)
    told: object
    try:
        # Who is asked to end before this has nothing to tell.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        told = judge(*asked, console).record()
    except BadInput as error:
        told = REFUSED, str(error), ""
    except NoRanks as error:
        told = NO_RANKS, str(error), error.summary
    except KeyboardInterrupt:
        return
    except Exception as error:  # noqa: BLE001 - it says nothing of the candidate
        told = NO_RANKS, f"harness: {told_in_full(error)}", f"{type(error).__name__}: {error}"
    # Nobody may be there any more to hear it.
    with suppress(BrokenPipeError):
        connection.send_bytes(json.dumps(told).encode())
