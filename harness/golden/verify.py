"""Candidates against what is stored, on every mesh that it is valid for."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple

from harness.against import ITSELF, PLAIN, Against
from harness.campaign.bias import Leanings
from harness.campaign.counts import together
from harness.campaign.coverage import Coverage
from harness.candidates import Named, locate
from harness.case import Case, Dtype
from harness.compare import Comparison, Verdict
from harness.golden.contents import Golden
from harness.golden.own import candidate_of, is_own
from harness.judge import Job, Session
from harness.judge.known import recognised
from harness.report.record import comparison_record


class Asked(NamedTuple):
    """A job, and the name of the golden that it is about."""

    name: str
    job: Job


def jobs(
    goldens: Mapping[str, Golden],
    candidates: Sequence[Named],
    sps: Sequence[int],
    ranks: int,
    dtypes: Sequence[Dtype] = ("fp64",),
    *,
    against: Against = PLAIN,
    doubted: Collection[str] = (),
) -> Iterator[Asked]:
    """Each golden with each candidate in each dtype on each mesh that the ranks can form.

    A golden that is of somebody's own step is for that candidate alone. What is `doubted` of these
    is not what its step computes at sp 1 by now: at a larger sp it is compared with that.
    """
    for name, golden in goldens.items():
        own = is_own(golden)
        whose = [locate(candidate_of(golden))] if own else candidates
        reference = ITSELF if own else against
        trusted = name not in doubted if own else against == PLAIN
        for case in golden.vector.meshes(sps):
            if case.ranks > ranks or (reference == ITSELF and case.sp == 1):
                continue
            for dtype, candidate in product(dtypes, whose):
                # A shorter format has weights of its own, rounded to it. What is stored shows
                # there that the references are right, and they say what should be computed.
                stored = golden.stored.trace if trusted and dtype == "fp64" else None
                yield Asked(name, Job(replace(case, dtype=dtype), candidate, reference, stored))


def verify(asked: Sequence[Asked], goldens: int, session: Session) -> "Verified":
    """Run all; then what failed again, fully traced, to say what it looks like.

    Once a golden has a failure that is not listed, only candidates with listed bugs are traced.
    """
    verified = Verified(goldens=goldens)
    failing = []
    for _, job in asked:
        verified.ask(job.candidate.name, job.case)
    # In fp64 the controller computes nothing unless a candidate fails.
    seen = session.judge((job for _, job in asked), closely=False)
    for (name, _), comparison in zip(asked, seen, strict=True):
        if comparison.verdict.failed:
            failing.append((name, comparison))
        else:
            verified.add(name, comparison)
    for name, failure in failing:
        may_be_listed = locate(failure.candidate).environment is not None
        if may_be_listed or name not in verified.failures:
            verified.add(name, recognised(_closer(failure, session)))
        else:
            verified.add(name, failure)
    return verified


def _closer(failure: Comparison, session: Session) -> Comparison:
    if failure.verdict is not Verdict.DIVERGED:
        return session.hold_to_listed(failure)
    traced = session.trace(Job.again(failure))
    return failure if traced.verdict.passed else traced


@dataclass(kw_only=True)
class Verified:
    """How runs against the store came out."""

    goldens: int
    verdicts: Counter[str] = field(default_factory=Counter)
    # How many runs were compared with what.
    against: Counter[str] = field(default_factory=Counter)
    # The record of the first of each golden.
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Bugs that are listed upstream, by key and link; and why cases were refused.
    listed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    # By candidate, what it was asked for and what of it was judged.
    coverage: dict[str, Coverage] = field(default_factory=dict)
    # By candidate, what leans in the runs that passed.
    leanings: dict[str, Leanings] = field(default_factory=dict)
    # What was asked for, and no golden can be cut over.
    unformed: list[int] = field(default_factory=list)
    # Whether some run has to share a sequence, whatever was asked for.
    shared: bool = False
    elements: int = 0
    # By candidate, keys that it emitted and that nothing was compared with.
    uncompared: dict[str, dict[str, None]] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def of(cls, runs: Mapping[str, Comparison]) -> "Verified":
        """Runs that were recorded, one of each golden: none was asked for at sp 1 alone."""
        verified = cls(goldens=len(runs), shared=True)
        for name, run in runs.items():
            verified.ask(run.candidate, run.case)
            verified.add(name, run)
        return verified

    def ask(self, candidate: str, case: Case) -> None:
        """Count what a candidate is asked for."""
        self.coverage.setdefault(candidate, Coverage()).ask(case, ("dtype",))

    def add(self, name: str, comparison: Comparison) -> None:
        self.verdicts[comparison.verdict.name] += 1
        self.against[comparison.against] += 1
        self.elements += comparison.elements
        if comparison.uncompared:
            known = self.uncompared.setdefault(comparison.candidate, {})
            known |= dict.fromkeys(comparison.uncompared)
        self.coverage.setdefault(comparison.candidate, Coverage()).add(comparison)
        if comparison.verdict.passed:
            self.leanings.setdefault(comparison.candidate, Leanings()).add(comparison)
        if comparison.verdict is Verdict.KNOWN:
            self.listed[comparison.reason] += 1
        if comparison.verdict is Verdict.UNSUPPORTED:
            self.refused[comparison.reason] += 1
        if comparison.verdict.failed:
            self.failures.setdefault(name, comparison_record(comparison))

    def __add__(self, other: "Verified") -> "Verified":
        """What two parts of the goldens come to together."""
        keys = {
            name: self.uncompared.get(name, {}) | other.uncompared.get(name, {})
            for name in (*self.uncompared, *other.uncompared)
        }
        return Verified(
            goldens=self.goldens + other.goldens,
            verdicts=self.verdicts + other.verdicts,
            against=self.against + other.against,
            failures=self.failures | other.failures,
            listed=self.listed + other.listed,
            refused=self.refused + other.refused,
            coverage=together(self.coverage, other.coverage),
            leanings=together(self.leanings, other.leanings),
            elements=self.elements + other.elements,
            uncompared=keys,
        )

    @property
    def verdict(self) -> Verdict:
        """The worst of all; a store that nobody could run was not verified."""
        seen = (Verdict[name] for name in self.verdicts)
        gaps = [Verdict.FAULT] if self.unexamined else []
        together = [Verdict.DIVERGED] if self.leans else []
        judged = (each for each in seen if each is not Verdict.UNSUPPORTED)
        return Verdict.worst([*judged, *gaps, *together])

    @property
    def leans(self) -> list[str]:
        """What is off by the same in every run, and by too little to be told in one."""
        return [f"{name}: {text}" for name, each in self.leanings.items() for text in each.told()]

    @property
    def unexamined(self) -> list[str]:
        """What was asked for and not examined; failures say enough."""
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
            f"{name} was judged on {what}; leave that out with --sp or --dtype, or name another "
            "candidate"
            for name, each in self.coverage.items()
            for what in each.lacks(shared=self.shared)
        ]

    def record(self) -> dict[str, Any]:
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
        """The record, and what is added up of parts."""
        return {
            **self.record(),
            "coverage": {name: each.record() for name, each in self.coverage.items()},
            "leanings": {name: each.record() for name, each in self.leanings.items()},
        }

    @classmethod
    def from_part(cls, part: dict[str, Any]) -> "Verified":
        """And back."""
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
