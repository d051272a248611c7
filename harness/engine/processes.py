"""Several pools on this host: a process for each, that does one job after the other."""

import ctypes
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Self

from harness.engine.engine import Done, Job
from harness.engine.lot import Part
from harness.engine.no_ranks import NoRanks
from harness.importing import SAFE_PATH
from harness.unexpected import told_in_full
from harness.untrusted import BadInput

# What may come instead of a summary, followed by what is to be said of it.
REFUSED, NO_RANKS = "refused", "no ranks"
# As the kernel's header has it.
PR_SET_PDEATHSIG = 1

# Opens ranks, given what was asked for and which of several pools it is. Of each job they make a
# record of what becomes of it.
Open = Callable[..., AbstractContextManager[Callable[[Any], Any]]]


@dataclass(slots=True)
class Worker(Generic[Job]):
    """One process, and the job that it has."""

    part: Part
    process: BaseProcess
    connection: Connection
    job: Job | None = None


class Processes(Generic[Job, Done]):
    """As many as there are pools; who is gone is replaced by another."""

    def __init__(
        self, opens: Open, asked: tuple[Any, ...], pools: int, read: Callable[[Any], Done]
    ) -> None:
        # What they import and start must be theirs alone.
        self._context = multiprocessing.get_context("spawn")
        self._opens, self._asked, self._read = opens, asked, read
        self._workers: list[Worker[Job]] = []
        self._stopped = False
        os.environ |= SAFE_PATH
        # Begun beforehand, because it would unblock what is blocked here.
        resource_tracker.ensure_running()
        try:
            with _without_ctrl_c():
                for number in range(1, pools + 1):
                    self._workers.append(self._started(Part(number, pools)))
        except BaseException:
            self.__exit__()
            raise

    def _started(self, part: Part) -> Worker[Job]:
        ours, theirs = self._context.Pipe()
        words = self._opens, (*self._asked, part), os.getpid(), theirs
        process = self._context.Process(target=_serve, args=words)
        process.start()
        theirs.close()
        return Worker(part, process, ours)

    @property
    def count(self) -> int:
        return len(self._workers)

    @property
    def has_room(self) -> bool:
        return any(worker.job is None for worker in self._workers)

    @property
    def is_busy(self) -> bool:
        return any(worker.job is not None for worker in self._workers)

    def begin(self, job: Job) -> None:
        worker = next(worker for worker in self._workers if worker.job is None)
        worker.job = job
        # A worker that is gone is noticed when it is waited for.
        with suppress(OSError):
            worker.connection.send(job)

    def finished(self) -> tuple[Job, Done | None]:
        busy = {worker.connection: worker for worker in self._workers if worker.job is not None}
        connection = next(iter(wait(busy)))
        assert isinstance(connection, Connection)
        worker = busy[connection]
        try:
            said: Any = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            said = None
        if isinstance(said, list):
            what, text, summary = said
            raise BadInput(text) if what == REFUSED else NoRanks(text, summary)
        job, worker.job = worker.job, None
        assert job is not None
        if said is not None:
            return job, self._read(said)
        self._end(worker)
        self._workers.remove(worker)
        if not self._stopped:
            with _without_ctrl_c():
                self._workers.append(self._started(worker.part))
        return job, None

    def stop(self) -> None:
        """They tell what they know by then."""
        self._stopped = True
        for worker in self._workers:
            worker.process.terminate()

    def _end(self, worker: Worker[Job]) -> None:
        """It has told all, or nobody waits for it any more."""
        worker.connection.close()
        worker.process.kill()
        worker.process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers:
            self._end(worker)


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """A Ctrl-C at the terminal is for us alone; we ask those we start to end in order."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(opens: Open, asked: tuple[Any, ...], parent: int, connection: Connection) -> None:
    """One process: do jobs, tell what each came to, and end when nobody asks any more."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return
    told: object = None
    try:
        # A worker that is asked to end before this has nothing to report.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with opens(*asked) as work:
            while True:
                record = work(connection.recv())
                connection.send_bytes(json.dumps(record).encode())
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        return
    except BadInput as error:
        told = REFUSED, str(error), ""
    except NoRanks as error:
        told = NO_RANKS, str(error), error.summary
    except Exception as error:  # noqa: BLE001 - it says nothing of the candidate
        told = NO_RANKS, f"harness: {told_in_full(error)}", f"{type(error).__name__}: {error}"
    # Nobody may be there any more to hear it.
    with suppress(BrokenPipeError):
        connection.send_bytes(json.dumps(told).encode())
