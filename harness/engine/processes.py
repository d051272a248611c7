"""The engine of several processes on this host, each with ranks of its own."""

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
from typing import Any, Generic, NoReturn, Self

from harness.engine.engine import Done, Job
from harness.engine.lot import Part
from harness.engine.no_ranks import NoRanks
from harness.importing import SAFE_PATH
from harness.processes.descendants import signal_when_orphaned
from harness.unexpected import describe_unexpected
from harness.untrusted import BadInput

# A worker may send (REFUSED or NO_RANKS, text, summary) instead of a record.
REFUSED, NO_RANKS = "refused", "no ranks"

# Opens ranks, given the caller's arguments and which of several pools it is, and yields a function
# that does a job and returns a record.
Open = Callable[..., AbstractContextManager[Callable[[Any], Any]]]


def failure_reply(error: Exception) -> tuple[str, str, str]:
    """Return what a worker sends in place of a record, for `raise_failure` in the parent."""
    if isinstance(error, BadInput):
        return REFUSED, str(error), ""
    if isinstance(error, NoRanks):
        return NO_RANKS, str(error), error.summary
    return NO_RANKS, f"harness: {describe_unexpected(error)}", f"{type(error).__name__}: {error}"


def raise_failure(kind: str, text: str, summary: str) -> NoReturn:
    """Raise the failure of a worker: `BadInput` or `NoRanks`."""
    raise BadInput(text) if kind == REFUSED else NoRanks(text, summary)


@dataclass(slots=True)
class Worker(Generic[Job]):
    """One process, and the job that it does."""

    part: Part
    process: BaseProcess
    connection: Connection
    job: Job | None = None


class Processes(Generic[Job, Done]):
    """As many workers as there are pools; a worker that ends too early is replaced."""

    def __init__(
        self, opens: Open, asked: tuple[Any, ...], pools: int, read: Callable[[Any], Done]
    ) -> None:
        # A fork would share imported modules and started ranks with this process.
        self._context = multiprocessing.get_context("spawn")
        self._opens, self._asked, self._read = opens, asked, read
        self._workers: list[Worker[Job]] = []
        self._is_stopped = False
        os.environ |= SAFE_PATH
        # Start it first: its start would unblock the signal that `_without_ctrl_c` blocks.
        resource_tracker.ensure_running()
        try:
            with _without_ctrl_c():
                for number in range(1, pools + 1):
                    self._workers.append(self._start_worker(Part(number, pools)))
        except BaseException:
            self.__exit__()
            raise

    def _start_worker(self, part: Part) -> Worker[Job]:
        own_end, its_end = self._context.Pipe()
        arguments = self._opens, (*self._asked, part), os.getpid(), its_end
        process = self._context.Process(target=_serve, args=arguments)
        process.start()
        its_end.close()
        return Worker(part, process, own_end)

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
        # Sending fails only if the worker has ended, and `finished` will notice that.
        with suppress(OSError):
            worker.connection.send(job)

    def finished(self) -> tuple[Job, Done | None]:
        busy = {worker.connection: worker for worker in self._workers if worker.job is not None}
        connection = next(iter(wait(busy)))
        assert isinstance(connection, Connection)
        worker = busy[connection]
        try:
            reply: Any = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            reply = None
        if isinstance(reply, list):
            raise_failure(*reply)
        job, worker.job = worker.job, None
        assert job is not None
        if reply is not None:
            return job, self._read(reply)
        self._end(worker)
        self._workers.remove(worker)
        if not self._is_stopped:
            with _without_ctrl_c():
                self._workers.append(self._start_worker(worker.part))
        return job, None

    def stop(self) -> None:
        """Ask every worker to end its job early, and to send what it knows by then."""
        self._is_stopped = True
        for worker in self._workers:
            worker.process.terminate()

    def _end(self, worker: Worker[Job]) -> None:
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
    """Block Ctrl-C, also in processes that start meanwhile: `stop` asks them to end instead."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(opens: Open, asked: tuple[Any, ...], parent: int, connection: Connection) -> None:
    """Do jobs in a worker process and send their records, until the parent ends or stops it."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    signal_when_orphaned(signal.SIGTERM)
    if os.getppid() != parent:
        return
    try:
        # Before this, SIGTERM ends the worker at once: it has nothing to report.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with opens(*asked) as work:
            while True:
                record = work(connection.recv())
                connection.send_bytes(json.dumps(record).encode())
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        return
    except Exception as error:  # noqa: BLE001 - it is no failure of the candidate
        # The parent may have ended.
        with suppress(BrokenPipeError):
            connection.send_bytes(json.dumps(failure_reply(error)).encode())
