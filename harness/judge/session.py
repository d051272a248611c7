"""The one way from jobs to comparisons, for commands, tests, shrinking and experiments.

1. Ranks stay busy: a few jobs are under way while the controller computes references and compares.
2. Comparisons come in the order of their jobs.
3. A job that fails goes through all stages before the next one is compared. The session first
   waits for the others that are under way, because only then can it ask the ranks again.
4. A caller that stops early leaves no answer behind for the next one.
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
    hold_to_fp32,
    hold_to_listed,
    look_closer,
    measure,
    trace,
)
from harness.ranks.pool import RankPool

# How many jobs the ranks may have in hand while the controller computes references.
AHEAD = 4


@dataclass(frozen=True, slots=True)
class Session:
    """Judges jobs on the ranks of one pool."""

    pool: RankPool

    def judge(self, jobs: Iterable[Job], *, closely: bool = True) -> Iterator[Comparison]:
        """Yield the comparison of each job, in order.

        A failure is looked at `closely`: it is traced to the first place, and held to what is
        listed of its library. Shrinking does without.
        """
        coming = iter(jobs)
        under_way = deque[Run]()
        try:
            while True:
                for job in islice(coming, AHEAD - len(under_way)):
                    under_way.append(ask_ranks(job, self.pool))
                if not under_way:
                    return
                run = under_way.popleft()
                seen = measure(run)
                if seen.verdict.failed:
                    _await(under_way)
                    seen = self._explained(run, seen, closely=closely)
                yield seen
        except GeneratorExit:
            _await(under_way)
            raise

    def judge_one(self, job: Job, *, closely: bool = True) -> Comparison:
        """Judge one job; nothing else may be under way."""
        return next(self.judge([job], closely=closely))

    def trace(self, job: Job) -> Comparison:
        """Judge one job on everything that its candidate emits, also if it does not diverge."""
        return hold_to_listed(hold_to_fp32(trace(job, self.pool), self.pool), self.pool)

    def hold_to_listed(self, failure: Comparison) -> Comparison:
        """Find out whether anything is wrong beside the bugs that are listed."""
        return hold_to_listed(failure, self.pool)

    @contextmanager
    def fresh(self, ranks: int) -> Iterator["Session"]:
        """Open a session on ranks that ran nothing yet."""
        with self.pool.fresh(ranks) as pool:
            yield Session(pool)

    def _explained(self, run: Run, seen: Comparison, *, closely: bool) -> Comparison:
        seen = ask_again(run, seen)
        if not closely:
            return seen
        if seen.verdict is Verdict.DIVERGED:
            seen = look_closer(seen, self.pool)
        return hold_to_listed(seen, self.pool)


def _await(runs: Iterable[Run]) -> None:
    for run in runs:
        run.outcome()
