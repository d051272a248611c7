"""Verify candidates: compare them with goldens on every mesh that a golden is valid for."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple

from harness.against import ITSELF, PLAIN, Against
from harness.campaign.bias import Leanings
from harness.campaign.counts import add_by_name
from harness.campaign.coverage import Coverage
from harness.candidates import Named, locate
from harness.case import Case, Dtype
from harness.compare import Comparison, Verdict
from harness.golden.contents import Golden
from harness.golden.own import against_of, candidate_of, is_own
from harness.judge import Job, Session
from harness.judge.known import mark_known
from harness.report.record import comparison_record


class GoldenJob(NamedTuple):
    """A job, and the name of the golden whose case it runs."""

    name: str
    job: Job


def golden_jobs(
    goldens: Mapping[str, Golden],
    candidates: Sequence[Named],
    sps: Sequence[int],
    ranks: int,
    dtypes: Sequence[Dtype] = ("fp64",),
    *,
    against: Against = PLAIN,
    doubted: Collection[str] = (),
) -> Iterator[GoldenJob]:
    """Yield each golden with each candidate in each dtype on each mesh that the ranks can form.

    An own golden is for its candidate alone. If it is among `doubted`, the candidate's step has
    changed at sp 1, so larger sp are compared with what the step computes now.
    """
    for name, golden in goldens.items():
        is_own_golden = is_own(golden)
        its_candidates = [locate(candidate_of(golden))] if is_own_golden else candidates
        reference = against_of(golden) if is_own_golden else against
        is_trusted = name not in doubted if is_own_golden else against == PLAIN
        for case in golden.vector.meshes(sps):
            if case.ranks > ranks or (reference == ITSELF and case.sp == 1):
                continue
            for dtype, candidate in product(dtypes, its_candidates):
                # In another dtype the weights are rounded first, so stored numbers do not apply.
                # The references, which the stored numbers confirm in fp64, are computed instead.
                stored = golden.stored.trace if is_trusted and dtype == "fp64" else None
                job = Job(replace(case, dtype=dtype), candidate, reference, stored)
                yield GoldenJob(name, job)


def verify(asked: Sequence[GoldenJob], goldens: int, session: Session) -> "GoldenResults":
    """Judge all jobs; then run the failures again, fully traced, to name what is wrong.

    Once a golden has a failure that is not listed, only candidates with listed bugs are traced.
    """
    verified = GoldenResults(goldens=goldens)
    failing = []
    for _, job in asked:
        verified.ask(job.candidate.name, job.case)
    # With stored numbers in fp64, the controller computes nothing unless a candidate fails.
    comparisons = session.judge((job for _, job in asked), closely=False)
    for (name, _), comparison in zip(asked, comparisons, strict=True):
        if comparison.verdict.failed:
            failing.append((name, comparison))
        else:
            verified.add(name, comparison)
    for name, failure in failing:
        may_be_listed = locate(failure.candidate).environment is not None
        if may_be_listed or name not in verified.failures:
            verified.add(name, mark_known(_look_closer(failure, session)))
        else:
            verified.add(name, failure)
    return verified


def _look_closer(failure: Comparison, session: Session) -> Comparison:
    """Trace a divergence; keep the failure as it was if it passes then."""
    if failure.verdict is not Verdict.DIVERGED:
        return session.hold_to_listed(failure)
    traced = session.trace(Job.again(failure))
    return failure if traced.verdict.passed else traced


@dataclass(kw_only=True)
class GoldenResults:
    """The results of runs that were compared with goldens; results of several parts add up."""

    goldens: int
    verdicts: Counter[str] = field(default_factory=Counter)
    # How many runs were compared with plain training, and how many with the candidate itself.
    against: Counter[str] = field(default_factory=Counter)
    # By golden, the record of its first failure.
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)
    # How many runs showed each listed bug, and how many were refused for each reason.
    listed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    # By candidate, what was asked for and how much of it was judged.
    coverage: dict[str, Coverage] = field(default_factory=dict)
    # By candidate, the leanings of the runs that passed.
    leanings: dict[str, Leanings] = field(default_factory=dict)
    # The sp that were asked for, but that no golden fits.
    unformed: list[int] = field(default_factory=list)
    # Whether a run must share a sequence over ranks, also if no sp above 1 was asked for.
    shared: bool = False
    elements: int = 0
    # By candidate, the keys that it emitted and that nothing was compared with.
    uncompared: dict[str, dict[str, None]] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def of(cls, runs: Mapping[str, Comparison]) -> "GoldenResults":
        """Return the result of one run of each recorded golden, by the golden's name."""
        verified = cls(goldens=len(runs), shared=True)
        for name, run in runs.items():
            verified.ask(run.candidate, run.case)
            verified.add(name, run)
        return verified

    def ask(self, candidate: str, case: Case) -> None:
        """Count a case that a candidate is asked to run."""
        self.coverage.setdefault(candidate, Coverage()).ask(case, ("dtype",))

    def add(self, name: str, comparison: Comparison) -> None:
        """Count the comparison of one run of a golden."""
        self.verdicts[comparison.verdict.name] += 1
        self.against[comparison.against] += 1
        self.elements += comparison.measured.elements
        if comparison.measured.uncompared:
            known = self.uncompared.setdefault(comparison.candidate, {})
            known |= dict.fromkeys(comparison.measured.uncompared)
        self.coverage.setdefault(comparison.candidate, Coverage()).add(comparison)
        if comparison.verdict.passed:
            self.leanings.setdefault(comparison.candidate, Leanings()).add(comparison)
        if comparison.verdict is Verdict.KNOWN:
            self.listed[comparison.reason] += 1
        if comparison.verdict is Verdict.UNSUPPORTED:
            self.refused[comparison.reason] += 1
        if comparison.verdict.failed:
            self.failures.setdefault(name, comparison_record(comparison))

    def __add__(self, other: "GoldenResults") -> "GoldenResults":
        """Return the result of two parts of the goldens together."""
        keys = {
            name: self.uncompared.get(name, {}) | other.uncompared.get(name, {})
            for name in (*self.uncompared, *other.uncompared)
        }
        return GoldenResults(
            goldens=self.goldens + other.goldens,
            verdicts=self.verdicts + other.verdicts,
            against=self.against + other.against,
            failures=self.failures | other.failures,
            listed=self.listed + other.listed,
            refused=self.refused + other.refused,
            coverage=add_by_name(self.coverage, other.coverage),
            leanings=add_by_name(self.leanings, other.leanings),
            elements=self.elements + other.elements,
            uncompared=keys,
        )

    @property
    def verdict(self) -> Verdict:
        """The worst verdict; `FAULT` if too little was examined, `DIVERGED` if a tensor leans."""
        seen = (Verdict[name] for name in self.verdicts)
        judged = (verdict for verdict in seen if verdict is not Verdict.UNSUPPORTED)
        gaps = [Verdict.FAULT] if self.unexamined else []
        leans = [Verdict.DIVERGED] if self.leans else []
        return Verdict.worst([*judged, *gaps, *leans])

    @property
    def leans(self) -> list[str]:
        """Tensors that are off by the same in every run, and by too little to show in one."""
        return [f"{name}: {text}" for name, each in self.leanings.items() for text in each.lines()]

    @property
    def unexamined(self) -> list[str]:
        """Sentences on gaps in what was examined; none if there are failures to mend first."""
        if not self.verdicts:
            return ["no golden fits so many ranks; ask for a smaller --sp or more --ranks"]
        if self.verdicts.keys() == {Verdict.UNSUPPORTED.name}:
            return ["every run was refused for the reasons above, and that is a fault"]
        if self.failures:
            return []
        if self.unformed:
            over = ", ".join(map(str, self.unformed))
            return [f"no golden can be cut over sp {over}; add one, or ask for another --sp"]
        return [
            f"{name} was judged on {gap}; leave that out with --sp or --dtype, or name another "
            "candidate"
            for name, coverage in self.coverage.items()
            for gap in coverage.lacks(shared=self.shared)
        ]

    def record(self) -> dict[str, Any]:
        """Return the document for programs and pages."""
        return {
            "goldens": self.goldens,
            "verdict": self.verdict.name,
            "verdicts": dict(self.verdicts),
            "against": dict(self.against),
            "listed": dict(self.listed),
            "refused": dict(self.refused),
            "unexamined": self.unexamined,
            "leans": self.leans,
            "elements": self.elements,
            "uncompared": {name: list(keys) for name, keys in self.uncompared.items()},
            "seconds": self.seconds,
            "failures": self.failures,
        }

    def part(self) -> dict[str, Any]:
        """Return the record with all that is needed to add it to those of other parts."""
        return {
            **self.record(),
            "coverage": {name: each.record() for name, each in self.coverage.items()},
            "leanings": {name: each.record() for name, each in self.leanings.items()},
        }

    @classmethod
    def from_part(cls, part: dict[str, Any]) -> "GoldenResults":
        """Return the result that a part's record was made of."""
        return cls(
            goldens=part["goldens"],
            verdicts=Counter(part["verdicts"]),
            against=Counter(part["against"]),
            failures=part["failures"],
            listed=Counter(part["listed"]),
            refused=Counter(part["refused"]),
            coverage={name: Coverage.from_record(each) for name, each in part["coverage"].items()},
            leanings={name: Leanings.from_record(each) for name, each in part["leanings"].items()},
            elements=part["elements"],
            uncompared={name: dict.fromkeys(keys) for name, keys in part["uncompared"].items()},
        )
