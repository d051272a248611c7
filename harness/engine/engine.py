"""Where work is done: pools of ranks, here or elsewhere, that take one job after the other."""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

Job = TypeVar("Job", bound=Hashable)
Done = TypeVar("Done")
Done_co = TypeVar("Done_co", covariant=True)
# How often a job may be lost together with whoever does it.
MOST_LOSSES = 2


class Lost(RuntimeError):
    """Each place that got this job was lost; the message names it."""


class Engine(Protocol[Job, Done_co]):
    """Where jobs are done, several at a time or one."""

    @property
    def has_room(self) -> bool:
        """Whether another job can be begun."""

    @property
    def is_busy(self) -> bool:
        """Whether one that was begun is not finished."""

    def begin(self, job: Job) -> None:
        """Have it done."""

    def finished(self) -> tuple[Job, Done_co | None] | None:
        """Wait for whichever is done first; nothing is known of one whose place is gone.

        Nothing at all, where there is room all of a sudden.
        """

    def stop(self) -> None:
        """Finish those that were begun as they are."""


class ThisProcess(Generic[Job, Done]):
    """This process; it does a job while that is waited for."""

    def __init__(self, work: Callable[[Job], Done]) -> None:
        self._work = work
        self._begun: list[Job] = []

    @property
    def has_room(self) -> bool:
        return not self._begun

    @property
    def is_busy(self) -> bool:
        return bool(self._begun)

    def begin(self, job: Job) -> None:
        self._begun.append(job)

    def finished(self) -> tuple[Job, Done]:
        job = self._begun.pop()
        return job, self._work(job)

    def stop(self) -> None:
        """None is begun while nobody waits for it."""
        self._begun.clear()


class Losses(Generic[Job]):
    """How often each job was lost."""

    def __init__(self) -> None:
        self._lost = Counter[Job]()

    def add(self, job: Job) -> None:
        """It may be given to another, or `Lost` is raised."""
        self._lost[job] += 1
        if self._lost[job] == MOST_LOSSES:
            raise Lost(
                f"{job}: whoever judged it was gone before it was done, {MOST_LOSSES} times"
            )


def run_all(jobs: Iterable[Job], engine: Engine[Job, Done]) -> Iterator[tuple[Job, Done]]:
    """What becomes of all of them, whichever is done first."""
    waiting, losses = deque(jobs), Losses[Job]()
    while waiting or engine.is_busy:
        while waiting and engine.has_room:
            engine.begin(waiting.popleft())
        came = engine.finished()
        if came is None:
            continue
        job, done = came
        if done is None:
            losses.add(job)
            waiting.appendleft(job)
        else:
            yield job, done
