"""A controller's end of a supervisor; one that has nothing to do waits for the next launch.

To import torch is most of what a launch costs, and every fault takes a fresh launch.
"""

import atexit
import contextlib
import os
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import harness
from harness.importing import SAFE_PATH
from harness.ranks import launch_folder, supervisor_process
from harness.ranks.descendants import ADDRESS, kill_below, kill_group, sweep
from harness.ranks.messages import OfSupervisor, Start, Stop, Stopped, Up
from harness.ranks.pipe import Pipe
from harness.ranks.process_exit import exit_handle
from harness.ranks.supervisor_process import CONTROLLER
from harness.watch.flight_recorder import ENVIRONMENT

# How long one may take to end its ranks, and how many wait that have none.
PATIENCE, MOST_IDLE = 2.0, 4
# The file of its folder that it prints to.
OUTPUT = "supervisor"
# pytest says there what it is at; it is another for every launch.
PASSING = "PYTEST_CURRENT_TEST"


class Supervisor:
    """A process that starts ranks, in a folder that goes with it."""

    def __init__(self, python: str) -> None:
        self.folder = launch_folder.make()
        self._held = launch_folder.hold(self.folder)
        self.address = str(self.folder / "controller")
        self._is_up = False
        self._output = os.open(self.folder / OUTPUT, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        ours, theirs = socket.socketpair()
        self.pipe = Pipe[OfSupervisor](ours, OfSupervisor)
        try:
            with theirs:
                self.process = subprocess.Popen(
                    [python, "-m", supervisor_process.__name__],
                    env=self._environment(),
                    stdin=theirs.fileno(),
                    stdout=self._output,
                    stderr=subprocess.STDOUT,
                    # Its own session: a Ctrl-C at the terminal is for the controller alone.
                    start_new_session=True,
                )
            try:
                # Readable once it has ended.
                self.handle = exit_handle(self.process.pid)
            except BaseException:
                kill_group(self.process.pid)
                self.process.wait()
                raise
        except BaseException:
            self._discard()
            raise

    def _environment(self) -> dict[str, str]:
        source = str(Path(harness.__file__).parent.parent)
        # An empty one would be the current folder.
        paths = [source, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        return {
            **os.environ,
            **ENVIRONMENT,
            ADDRESS: self.address,
            CONTROLLER: str(os.getpid()),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(paths),
            # What lies in the current folder may be a stranger's: nothing of it is imported.
            **SAFE_PATH,
        }

    @property
    def is_alive(self) -> bool:
        """Whether it can be given a launch."""
        return self.process.poll() is None and (self.folder / OUTPUT).exists()

    def start(self, order: Start) -> None:
        """Without waiting. If it is about to be gone, its handle says so."""
        with contextlib.suppress(OSError):
            self.pipe.send(order)

    def receive(self) -> Iterator[OfSupervisor]:
        """What it says, now that there is something to be read."""
        self.pipe.read()
        while self.pipe.waiting:
            message = self.pipe.waiting.popleft()
            self._is_up |= isinstance(message, Up)
            yield message

    def stop(self) -> bool:
        """Have it end its ranks; whether it did, and is good for others."""
        if not self._is_up and not select.select([self.pipe], [], [], 0)[0]:
            return False
        with contextlib.suppress(OSError):
            self.pipe.send(Stop())
            until = time.monotonic() + PATIENCE
            while select.select([self.pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                if any(isinstance(message, Stopped) for message in self.receive()):
                    return self.is_alive
                if self.process.poll() is not None:
                    break
        return False

    def output(self, most: int) -> bytes:
        """The end of what it printed."""
        size = os.fstat(self._output).st_size
        return os.pread(self._output, most, max(0, size - most))

    def clear(self) -> bool:
        """Remove what a launch left; whether the folder is there for another.

        A rank whose socket was closed before it was ended takes us for gone, and the folder along.
        """
        for entry in self.folder.glob("*"):
            if entry.name == OUTPUT:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()
        return (self.folder / OUTPUT).exists()

    def end(self) -> None:
        """Every process, at once, and the folder."""
        if self.process.returncode is None:
            # What ranks left behind has come to it.
            kill_below([self.process.pid])
            kill_group(self.process.pid)
        # Processes that left their session as well.
        sweep(self.address)
        self.process.wait()
        os.close(self.handle)
        self._discard()

    def _discard(self) -> None:
        self.pipe.close()
        os.close(self._output)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._held)


# The process, interpreter, temporary folder and environment that a supervisor is for.
Kind = tuple[int, str, str, dict[str, str]]
_LOCK = threading.Lock()
# Supervisors that wait for work, the latest last.
_IDLE: list[tuple[Kind, Supervisor]] = []


def _kind(python: str) -> Kind:
    environment = {name: value for name, value in os.environ.items() if name != PASSING}
    return os.getpid(), python, tempfile.gettempdir(), environment


def take(python: str) -> tuple[Kind, Supervisor]:
    """One that waits and was started as a new one would be, or a new one; and of what kind."""
    kind = _kind(python)
    with _LOCK:
        for entry in reversed(_IDLE):
            if entry[0] == kind:
                _IDLE.remove(entry)
                if entry[1].is_alive:
                    return entry
                entry[1].end()
    return kind, Supervisor(python)


def give_back(kind: Kind, supervisor: Supervisor) -> None:
    """It has ended its ranks, and may serve others."""
    if not supervisor.clear():
        supervisor.end()
        return
    with _LOCK:
        _IDLE.append((kind, supervisor))
        late = [_IDLE.pop(0)[1] for _ in _IDLE[MOST_IDLE:]]
    for each in late:
        each.end()


@atexit.register
def _end_all() -> None:
    while _IDLE:
        (owner, *_), supervisor = _IDLE.pop()
        # A fork of its owner has none.
        if owner == os.getpid():
            supervisor.end()
