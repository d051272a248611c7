"""The controller's end of a supervisor, and the idle supervisors that wait for the next launch.

Importing torch is most of what a launch costs, and every fault needs a fresh launch: a supervisor
that has imported it is worth keeping.
"""

import atexit
import contextlib
import os
import select
import shutil
import socket
import subprocess
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import harness
from harness.importing import SAFE_PATH
from harness.processes.descendants import ADDRESS, kill_below, kill_group, sweep
from harness.processes.process_exit import exit_handle
from harness.supervision import launch_folder, supervisor_process
from harness.supervision.supervisor_process import CONTROLLER, IMPORTS
from harness.watch.flight_recorder import ENVIRONMENT
from harness.wire.messages import FromSupervisor, Start, Stop, Stopped, Up
from harness.wire.pipe import Pipe

# Seconds that a supervisor may take to end its ranks, and how many may be idle.
PATIENCE, MOST_IDLE = 2.0, 4
# The file in its folder that a supervisor prints to.
OUTPUT = "supervisor"
# Where pip puts packages of this Python.
INSTALLED = {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}
# pytest changes this variable for every test, which makes no difference to a supervisor.
PASSING = "PYTEST_CURRENT_TEST"


class Origin(NamedTuple):
    """What a supervisor was started with; for another launch all of it has to be the same."""

    # The pid of its controller.
    controller: int
    python: str
    # Where temporary files are.
    folder: str
    environment: dict[str, str]
    # The modules that it imports for its ranks.
    imports: tuple[str, ...]

    @classmethod
    def now(cls, python: str, imports: Sequence[str]) -> Self:
        environment = {name: value for name, value in os.environ.items() if name != PASSING}
        return cls(os.getpid(), python, tempfile.gettempdir(), environment, tuple(imports))


class Supervisor:
    """A process that starts ranks, and the folder that is removed with it."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.folder = launch_folder.make()
        self._held = launch_folder.hold(self.folder)
        self.address = str(self.folder / "controller")
        self._is_up = False
        self._output = os.open(self.folder / OUTPUT, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        own_end, its_end = socket.socketpair()
        self.pipe = Pipe[FromSupervisor](own_end, FromSupervisor)
        with contextlib.ExitStack() as undo:
            undo.callback(self._discard)
            with its_end:
                self.process = subprocess.Popen(
                    [origin.python, "-m", supervisor_process.__name__],
                    env=self._environment(),
                    stdin=its_end.fileno(),
                    stdout=self._output,
                    stderr=subprocess.STDOUT,
                    # A session of its own: a Ctrl-C at the terminal is for the controller alone.
                    start_new_session=True,
                )
            undo.callback(self.process.wait)
            undo.callback(kill_group, self.process.pid)
            # Readable once the process has ended.
            self.handle = exit_handle(self.process.pid)
            undo.pop_all()

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **ENVIRONMENT,
            ADDRESS: self.address,
            CONTROLLER: str(os.getpid()),
            IMPORTS: " ".join(self.origin.imports),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": import_path(),
            # Import nothing from the current folder, which may hold a stranger's files.
            **SAFE_PATH,
        }

    @property
    def is_alive(self) -> bool:
        """Whether it can serve another launch."""
        return self.process.poll() is None and (self.folder / OUTPUT).exists()

    def start(self, order: Start) -> None:
        """Have it start ranks, without waiting for them."""
        # Sending fails only if it is exiting, and then `handle` becomes readable.
        with contextlib.suppress(OSError):
            self.pipe.send(order)

    def receive(self) -> Iterator[FromSupervisor]:
        """Read once from the pipe, which has to be readable, and yield the messages."""
        self.pipe.read()
        while self.pipe.inbox:
            message = self.pipe.inbox.popleft()
            self._is_up |= isinstance(message, Up)
            yield message

    def stop(self) -> bool:
        """Have it end its ranks; return whether it did so and can serve another launch."""
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

    def reap(self) -> int:
        """Return the exit status of a supervisor that has ended, as its handle says."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            # A handle that a thread writes to may be wrong.
            self.process.kill()
            return self.process.wait()

    def output(self, most: int) -> bytes:
        """Return the end of what it printed, at most so many bytes."""
        size = os.fstat(self._output).st_size
        return os.pread(self._output, most, max(0, size - most))

    def clear(self) -> bool:
        """Remove the files of a launch; return whether the folder can serve another.

        It cannot if a rank's socket was closed before the rank was ended: the rank then believed
        that its controller had ended, and removed the folder.
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
        """Kill it and every process that belongs to it, and remove the folder."""
        if self.process.returncode is None:
            # It has adopted the processes that its ranks left behind.
            kill_below([self.process.pid])
            kill_group(self.process.pid)
        # Find those that left its session, too.
        sweep(self.address)
        self.process.wait()
        os.close(self.handle)
        self._discard()

    def _discard(self) -> None:
        self.pipe.close()
        os.close(self._output)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._held)


def import_path() -> str:
    """Return PYTHONPATH for an interpreter, which may be that of another environment."""
    source = str(Path(harness.__file__).parent.parent)
    # An installed harness is found without this, and what lies beside it must not come first.
    sources = [] if source in INSTALLED else [source]
    # An empty path would mean the current folder.
    paths = [*sources, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.pathsep.join(paths)


_LOCK = threading.Lock()
# Supervisors without ranks, the latest last.
_IDLE: list[Supervisor] = []


def take(python: str, imports: Sequence[str]) -> Supervisor:
    """Return an idle supervisor of the present origin, or else a new one."""
    origin = Origin.now(python, imports)
    with _LOCK:
        for idle in reversed(_IDLE):
            if idle.origin == origin:
                _IDLE.remove(idle)
                if idle.is_alive:
                    return idle
                idle.end()
    return Supervisor(origin)


def give_back(supervisor: Supervisor) -> None:
    """Have a supervisor end its ranks; keep it idle for another launch, or end it as well."""
    if not (supervisor.stop() and supervisor.clear()):
        supervisor.end()
        return
    with _LOCK:
        _IDLE.append(supervisor)
        surplus = [_IDLE.pop(0) for _ in _IDLE[MOST_IDLE:]]
    for each in surplus:
        each.end()


@atexit.register
def _end_all() -> None:
    while _IDLE:
        supervisor = _IDLE.pop()
        # A fork of the controller inherits the list, and does not own its supervisors.
        if supervisor.origin.controller == os.getpid():
            supervisor.end()
