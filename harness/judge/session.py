"""The session, which judges jobs for commands, tests, shrinking and experiments.

1. Ranks stay busy: a few jobs are under way while the controller computes references and compares.
2. Comparisons come in the order of their jobs.
3. A job that fails goes through all stages before the next one is compared. The session first
   waits for the other jobs under way, because only then can it give the ranks new runs.
4. If the caller stops early, the session waits for the jobs under way, so that their answers are
   not taken for those of the next session.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from harness.compare import Comparison, Verdict
from harness.judge.job import Job
from harness.judge.stages import (
    Run,
    ask_again,
    ask_ranks,
    excuse_fp32,
    hold_to_listed,
    look_closer,
    measure,
    trace_job,
)
from harness.ranks.pool import RankPool

# How many jobs may be under way at a time.
AHEAD = 4


@dataclass(frozen=True, slots=True)
class Session:
    """Judges any number of jobs on the ranks of one pool."""

    pool: RankPool

    def judge(self, jobs: Iterable[Job], *, closely: bool = True) -> Iterator[Comparison]:
        """Yield the comparison of each job, in order.

        With `closely`, a failure is traced to the first wrong tensor and checked against the
        listed bugs of its library. Shrinking does not need that.
        """
        remaining = iter(jobs)
        under_way = deque[Run]()
        try:
            while True:
                for job in islice(remaining, AHEAD - len(under_way)):
                    if not (self.pool.knows(job.candidate) and self.pool.knows(job.recipe)):
                        # Only idle ranks can be asked what they are about to run.
                        _await(under_way)
                    under_way.append(ask_ranks(job, self.pool))
                if not under_way:
                    return
                run = under_way.popleft()
                comparison = measure(run)
                if comparison.verdict.failed:
                    _await(under_way)
                    comparison = self._follow_up(run, comparison, closely=closely)
                yield comparison
        except GeneratorExit:
            _await(under_way)
            raise

    def judge_one(self, job: Job, *, closely: bool = True) -> Comparison:
        """Return the comparison of one job; no other job may be under way."""
        return next(self.judge([job], closely=closely))

    def trace(self, job: Job) -> Comparison:
        """Judge one job on all keys that its candidate emits, whether it diverges or not."""
        return hold_to_listed(excuse_fp32(trace_job(job, self.pool), self.pool), self.pool)

    def hold_to_listed(self, failure: Comparison) -> Comparison:
        """Add to a failure what its candidate does without its listed bugs."""
        return hold_to_listed(failure, self.pool)

    @contextmanager
    def fresh(self, ranks: int) -> Iterator["Session"]:
        """Open a session on new ranks, which have run nothing yet."""
        with self.pool.fresh(ranks) as pool:
            yield Session(pool)

    def _follow_up(self, run: Run, comparison: Comparison, *, closely: bool) -> Comparison:
        """Take a failure through the stages after `measure`."""
        comparison = ask_again(run, comparison)
        if not closely:
            return comparison
        if comparison.verdict is Verdict.DIVERGED:
            comparison = look_closer(comparison, self.pool)
        return hold_to_listed(comparison, self.pool)


def _await(runs: Iterable[Run]) -> None:
    for run in runs:
        run.outcome()
