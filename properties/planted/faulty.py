"""Candidates that misbehave on one rank, each in its own way; the other ranks do not.

Tests of the ranks, and `ci/chaos.py`, expect one report for each of them, and nothing left behind.
Tests also look for names of functions in the stacks that the harness reports.
"""

import _thread
import ctypes
import gc
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from harness.candidates import Emit, Rank
from harness.candidates.own.native import LOCAL, LocalDialect
from harness.candidates.own.native.rows import Sample
from harness.case import Case
from harness.processes.descendants import ADDRESS
from harness.wire.frames import encode
from harness.wire.messages import Ready

FOR_EVER = 10**6


@dataclass(frozen=True, slots=True)
class Faulty:
    """The native step, with a call before or after it on one rank."""

    name: str
    rank: int
    before: Callable[[Rank, Emit], object] = lambda _rank, _emit: None
    after: Callable[[Rank, Emit], object] = lambda _rank, _emit: None

    def supports(self, case: Case) -> str | None:
        return LOCAL.supports(case)

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        if rank.index == self.rank:
            self.before(rank, emit)
        LOCAL.run(case, rank, emit)
        if rank.index == self.rank:
            self.after(rank, emit)


def sleep(_rank: Rank, _emit: Emit) -> None:
    time.sleep(FOR_EVER)


def sleep_elsewhere(_rank: Rank, _emit: Emit) -> None:
    """Sleep in a thread that Python does not know, as in backward on a GPU, and wait for it."""
    done = threading.Lock()
    done.acquire()
    _thread.start_new_thread(sleep, (_rank, _emit))
    done.acquire()


def spin(_rank: Rank, _emit: Emit) -> None:
    while True:
        pass


def turn_deaf(_rank: Rank, emit: Emit) -> None:
    emit("deaf", torch.ones(()))
    # PyDLL keeps the interpreter lock during the call, so no other thread can run.
    ctypes.PyDLL(None).sleep(FOR_EVER)


def say_bad_tokens(_rank: Rank, emit: Emit) -> None:
    emit("nll", torch.ones(1), torch.tensor([10**6]))


def raise_as_planned(_rank: Rank, _emit: Emit) -> None:
    raise ValueError("as planned")


def leave_a_daemon(_rank: Rank, emit: Emit) -> None:
    """Leave a process with another session, another parent and an empty environment."""
    command = [f"daemon of {os.environ[ADDRESS]}", str(FOR_EVER)]
    if os.fork() == 0:
        subprocess.Popen(command, executable="/bin/sleep", env={}, start_new_session=True)
        os._exit(0)
    os.wait()
    emit("daemon", torch.ones(()))


def leave_a_daemon_and_sleep(rank: Rank, emit: Emit) -> None:
    leave_a_daemon(rank, emit)
    time.sleep(FOR_EVER)


def leave_a_daemon_and_die(rank: Rank, emit: Emit) -> None:
    leave_a_daemon(rank, emit)
    os.kill(os.getpid(), signal.SIGKILL)


def kill_the_supervisor(rank: Rank, emit: Emit) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    sleep(rank, emit)


def leave_with_a_long_word(_rank: Rank, _emit: Emit) -> None:
    raise SystemExit("so long " * (10 << 20))


def leave(_rank: Rank, _emit: Emit) -> None:
    raise SystemExit(0)


def vanish(_rank: Rank, _emit: Emit) -> None:
    os._exit(0)


def flood(_rank: Rank, _emit: Emit) -> None:
    """Write far too much to the log, as a step does that prints every tensor; then fail."""
    for _ in range(300):
        os.write(2, b"so long " * (1 << 17))
    raise ValueError("after a long word")


def close_sockets(_rank: Rank, _emit: Emit) -> None:
    os.closerange(3, 1 << 12)
    time.sleep(FOR_EVER)


def fill_the_disk(_rank: Rank, _emit: Emit) -> None:
    """Let no file of this process grow any more, not even its log."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    Path(tempfile.gettempdir(), "full").write_text("of this")


def exhaust_memory(_rank: Rank, _emit: Emit) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
    torch.ones(1 << 28)


def exhaust_descriptors(_rank: Rank, _emit: Emit) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    Path(os.devnull).read_bytes()


def all_reduce_alone(rank: Rank, _emit: Emit) -> None:
    dist.all_reduce(torch.ones(3), group=rank.sp)


def controller() -> Any:
    """Return the worker's end of the socket to the controller, which no candidate should use."""
    return next(o for o in gc.get_objects() if type(o).__name__ == "Controller")


def leave_children(_rank: Rank, _emit: Emit) -> None:
    command = [sys.executable, "-c", f"import time; time.sleep({FOR_EVER})"]
    subprocess.Popen(command, start_new_session=True)
    if os.fork() == 0:
        # This child keeps the socket to the controller open.
        time.sleep(FOR_EVER)
    os._exit(7)


def leave_a_talker(_rank: Rank, _emit: Emit) -> None:
    """Leave a child that sends valid messages faster than the controller can read them."""
    link, frames = controller(), encode(Ready({"device": "cpu"})) * 10_000
    if os.fork() == 0:
        while True:
            link._socket.sendall(frames)
    os._exit(7)


def talk_garbage(_rank: Rank, _emit: Emit) -> None:
    print("here it comes", flush=True)  # noqa: T201 - for the log
    controller()._socket.sendall(os.urandom(4096))


class SlowLibrary(MetaPathFinder, Loader):
    """A module that takes some seconds to import the first time."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self.seconds = name, seconds

    def find_spec(self, fullname: str, *_where: object) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname == self.name else None

    def exec_module(self, _module: ModuleType) -> None:
        time.sleep(self.seconds)


def import_elsewhere(_rank: Rank, _emit: Emit) -> None:
    thread = threading.Thread(target=import_slowly, args=("slow_elsewhere", 5.5))
    thread.start()
    thread.join()


def import_slowly(name: str, seconds: float) -> None:
    sys.meta_path.insert(0, SlowLibrary(name, seconds))
    import_module(name)


class RaisesThenDies(LocalDialect):
    """Rank 0 raises, and a moment later the other rank is killed."""

    name = "raises-then-dies"

    def run(self, _case: Case, rank: Rank, emit: Emit) -> None:
        if rank.index == 0:
            raise_as_planned(rank, emit)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)


class SkipsCollective(LocalDialect):
    """Rank 1 leaves out the sum of the loss, and is one collective ahead from then on."""

    name = "skips-collective"

    def reported_loss(self, total: Tensor, rank: Rank) -> Tensor:
        if rank.index == 0:
            dist.all_reduce(total, group=rank.world)
        return total


class SleepsBoth(LocalDialect):
    """No rank ever returns."""

    name = "sleeps-both"

    def run(self, _case: Case, rank: Rank, emit: Emit) -> None:
        sleep(rank, emit)


class Stops(LocalDialect):
    """Rank 1 stops itself by a signal while rank 0 sleeps."""

    name = "stops"

    def run(self, _case: Case, rank: Rank, emit: Emit) -> None:
        if rank.index == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        sleep(rank, emit)


class SkipsLast(LocalDialect):
    """Rank 1 does not take part in the last collective of the step."""

    name = "skips-last"

    def reduce(self, model: nn.Module, rank: Rank) -> None:
        if rank.index != 1:
            super().reduce(model, rank)  # type: ignore[arg-type]


class PeersDiffer(LocalDialect):
    """Peers of one sequence hold different rows, as with a sampler keyed by the global rank."""

    name = "peers-differ"

    def samples(self, case: Case, rank: Rank) -> list[Sample]:
        rows = super().samples(case, rank)
        return rows[rank.index :] + rows[: rank.index]


SLEEPS = Faulty("sleeps", 1, before=sleep)
SLEEPS_ELSEWHERE = Faulty("sleeps-elsewhere", 1, before=sleep_elsewhere)
IMPORTS_ELSEWHERE = Faulty("imports-elsewhere", 1, before=import_elsewhere)
SLEEPS_BOTH = SleepsBoth()
STOPS = Stops()
KILLS_ITS_SUPERVISOR = Faulty("kills-its-supervisor", 1, before=kill_the_supervisor)
LATE = Faulty("late", 1, after=lambda _rank, _emit: time.sleep(1))
IMPORTS_SLOWLY = Faulty(
    "imports-slowly", 1, before=lambda _rank, _emit: import_slowly("slow", 5.5)
)
NEVER_IMPORTED = Faulty(
    "never-imported", 1, before=lambda _rank, _emit: import_slowly("endless", FOR_EVER)
)
SPINS = Faulty("spins", 1, before=spin)
DEAF = Faulty("deaf", 1, before=turn_deaf)
RANK_0_RAISES = Faulty("rank-0-raises", 0, before=raise_as_planned)
DIES = Faulty("dies", 1, before=lambda _rank, _emit: os.kill(os.getpid(), signal.SIGKILL))
RAISES_THEN_DIES = RaisesThenDies()
EXTRA_COLLECTIVE_FIRST = Faulty("extra-collective-first", 0, before=all_reduce_alone)
SKIPS_COLLECTIVE = SkipsCollective()
SKIPS_LAST = SkipsLast()
BAD_TOKENS = Faulty("bad-tokens", 1, before=say_bad_tokens)
PEERS_DIFFER = PeersDiffer()
TALKS_GARBAGE = Faulty("talks-garbage", 1, before=talk_garbage)
LEAVES_A_DAEMON = Faulty("leaves-a-daemon", 1, before=leave_a_daemon_and_sleep)
LEAVES_A_DAEMON_AND_DIES = Faulty("leaves-a-daemon-and-dies", 1, before=leave_a_daemon_and_die)
LEAVES_WITH_A_LONG_WORD = Faulty("leaves-with-a-long-word", 1, before=leave_with_a_long_word)
LEAVES = Faulty("leaves", 1, before=leave)
VANISHES = Faulty("vanishes", 1, before=vanish)
FLOODS = Faulty("floods", 1, before=flood)
CLOSES_SOCKETS = Faulty("closes-sockets", 1, before=close_sockets)
FILLS_THE_DISK = Faulty("fills-the-disk", 1, before=fill_the_disk)
EXHAUSTS_MEMORY = Faulty("exhausts-memory", 1, before=exhaust_memory)
EXHAUSTS_DESCRIPTORS = Faulty("exhausts-descriptors", 1, before=exhaust_descriptors)
LEAVES_A_TALKER = Faulty("leaves-a-talker", 1, before=leave_a_talker)
LEAVES_CHILDREN = Faulty("leaves-children", 1, before=leave_children)
