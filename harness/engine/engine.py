"""The interface of an engine, the engine that is this process, and the loop that does all jobs."""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

Job = TypeVar("Job", bound=Hashable)
Done = TypeVar("Done")
Done_co = TypeVar("Done_co", covariant=True)
# How often a job may be lost before it is given up.
MOST_LOSSES = 2


class Lost(RuntimeError):
    """Every process that got this job ended before it was done; the message names the job."""


class Engine(Protocol[Job, Done_co]):
    """Does one job, or several at a time."""

    @property
    def has_room(self) -> bool:
        """Whether another job can begin."""

    @property
    def is_busy(self) -> bool:
        """Whether a job has begun and is not finished."""

    def begin(self, job: Job) -> None:
        """Begin a job."""

    def finished(self) -> tuple[Job, Done_co | None] | None:
        """Wait for the first job that ends; return it and its result, None if it was lost.

        Return None instead if no job has ended, but there may be room for another now.
        """

    def stop(self) -> None:
        """Have the jobs under way end early, with what they know by then."""


class ThisProcess(Generic[Job, Done]):
    """Does a job while the caller waits for it."""

    def __init__(self, work: Callable[[Job], Done]) -> None:
        self._work = work
        self._jobs: list[Job] = []

    @property
    def has_room(self) -> bool:
        return not self._jobs

    @property
    def is_busy(self) -> bool:
        return bool(self._jobs)

    def begin(self, job: Job) -> None:
        self._jobs.append(job)

    def finished(self) -> tuple[Job, Done]:
        job = self._jobs.pop()
        return job, self._work(job)

    def stop(self) -> None:
        """Drop the job: it is not under way unless the caller waits for it."""
        self._jobs.clear()


class Losses(Generic[Job]):
    """How often each job was lost."""

    def __init__(self) -> None:
        self._counts = Counter[Job]()

    def add(self, job: Job) -> None:
        """Count a loss; raise `Lost` if the job must not begin again."""
        self._counts[job] += 1
        if self._counts[job] == MOST_LOSSES:
            raise Lost(
                f"{job}: whoever judged it was gone before it was done, {MOST_LOSSES} times"
            )


def run_all(jobs: Iterable[Job], engine: Engine[Job, Done]) -> Iterator[tuple[Job, Done]]:
    """Do all jobs, and yield each with its result as soon as it is done."""
    waiting, losses = deque(jobs), Losses[Job]()
    while waiting or engine.is_busy:
        while waiting and engine.has_room:
            engine.begin(waiting.popleft())
        finished = engine.finished()
        if finished is None:
            continue
        job, done = finished
        if done is None:
            losses.add(job)
            waiting.appendleft(job)
        else:
            yield job, done
