"""Judge candidates by the names that a command line has for them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from harness.against import PLAIN, Against
from harness.candidates import locate
from harness.case import Case
from harness.compare import Comparison
from harness.judge import Job, Session, add_diagnosis
from harness.ranks.pool import RankPool
from harness.verdict import Verdict
from properties.helpers.comparisons import comparison_with


def evaluate(
    case: Case, candidate: str, pool: RankPool, *, against: Against = PLAIN
) -> Comparison:
    """Judge one case; if it diverges, also find the first tensor that differs."""
    return Session(pool).judge_one(Job(case, locate(candidate), against))


def evaluate_all(
    jobs: Iterable[tuple[Case, str]], pool: RankPool, *, against: Against = PLAIN
) -> Iterator[Comparison]:
    """Judge cases in order, and keep the ranks busy between them."""
    return Session(pool).judge(Job(case, locate(name), against) for case, name in jobs)


def evaluate_traced(
    case: Case, candidate: str, pool: RankPool, *, against: Against = PLAIN
) -> Comparison:
    """Judge one case on everything that the candidate emits."""
    return Session(pool).trace(Job(case, locate(candidate), against))


def diagnosed(failure: Comparison, pool: RankPool) -> Comparison:
    """Return a failure with its names, however slow the machine is."""
    return add_diagnosis(failure, Session(pool), seconds=inf)


def verdict_only(
    case: Case, candidate: str, pool: RankPool, *, against: Against = PLAIN
) -> Comparison:
    """Judge one case on the required keys alone, as shrinking does."""
    return Session(pool).judge_one(Job(case, locate(candidate), against), closely=False)


def comparison_of(job: Job, verdict: Verdict, **fields: Any) -> Comparison:
    """Make the comparison that a session returns for a job."""
    name = job.candidate.name
    return comparison_with(case=job.case, candidate=name, verdict=verdict, **fields)


@dataclass(frozen=True, slots=True)
class Answering(Session):
    """A session that calls a function instead of running ranks."""

    answer: Callable[[Job], Comparison]

    def judge(self, jobs: Iterable[Job], *, closely: bool = True) -> Iterator[Comparison]:
        del closely
        return map(self.answer, jobs)
