"""Candidates against what is stored, on every mesh that it is valid for."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from harness.case import Case
from harness.compare import Comparison, Verdict, faulted, unsupported
from harness.golden.contents import Golden
from harness.judge import blame
from harness.judge.judge import AHEAD, Run, begin, evaluate_traced
from harness.ranks.pool import RankPool
from harness.report.record import comparison_record
from harness.trace import Fault, Trace, Unsupported

Job = tuple[str, Case, str, Trace]


def jobs(
    goldens: Mapping[str, Golden], candidates: Sequence[str], sps: Sequence[int], ranks: int
) -> Iterator[Job]:
    """Each golden with each candidate on each mesh that the ranks can form."""
    for name, golden in goldens.items():
        for case in golden.vector.meshes(sps):
            if case.ranks <= ranks:
                for candidate in candidates:
                    yield name, case, candidate, golden.stored.trace


def judged(asked: Iterable[Job], pool: RankPool) -> Iterator[tuple[str, Comparison]]:
    """Run and compare, in order; nothing is computed here unless somebody would be blamed."""
    coming = iter(asked)
    under_way: deque[tuple[Job, Run]] = deque()
    while True:
        for job in islice(coming, AHEAD - len(under_way)):
            _, case, candidate, _ = job
            under_way.append((job, begin(case, candidate, pool)))
        if not under_way:
            return
        (name, case, candidate, stored), run = under_way.popleft()
        outcome = run.outcome()
        if isinstance(outcome, Unsupported):
            yield name, unsupported(case, candidate, outcome.reason)
        elif isinstance(outcome, Fault):
            yield name, faulted(case, candidate, outcome)
        else:
            told = case, candidate, stored, stored, outcome, pool.computes_on
            yield name, blame.judged(*told, source="what is stored")


@dataclass(kw_only=True)
class Verified:
    """How runs against the store came out."""

    goldens: int
    verdicts: Counter[str] = field(default_factory=Counter)
    # The first of each golden.
    failures: dict[str, Comparison] = field(default_factory=dict)
    elements: int = 0
    seconds: float = 0.0

    def add(self, name: str, comparison: Comparison) -> None:
        self.verdicts[comparison.verdict.name] += 1
        self.elements += comparison.elements
        if comparison.verdict.failed:
            self.failures.setdefault(name, comparison)

    def look_closer(self, pool: RankPool) -> None:
        """Run what failed again, fully traced, to say what it looks like."""
        for name, failure in self.failures.items():
            if failure.verdict is Verdict.DIVERGED:
                traced = evaluate_traced(failure.case, failure.candidate, pool)
                if traced.verdict is Verdict.DIVERGED:
                    self.failures[name] = traced

    @property
    def verdict(self) -> Verdict:
        """The worst of all; a store that nobody could run was not verified."""
        seen = (Verdict[name] for name in self.verdicts)
        return Verdict.worst(each for each in seen if each is not Verdict.UNSUPPORTED)

    def record(self) -> dict[str, Any]:
        return {
            "goldens": self.goldens,
            "verdict": self.verdict.name,
            "verdicts": dict(self.verdicts),
            "elements": self.elements,
            "seconds": self.seconds,
            "failures": {name: comparison_record(each) for name, each in self.failures.items()},
        }
