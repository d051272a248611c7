"""What was seen of one candidate, as data: added up, written, read back. Needs no torch."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from harness.against import is_kept
from harness.campaign.bounds import Bounds
from harness.campaign.coverage import Coverage
from harness.campaign.leaning import Leanings
from harness.campaign.together import together
from harness.case import Case, parse
from harness.verdict import Verdict

if TYPE_CHECKING:
    from harness.compare import Comparison

# So many cases may need nothing of other ranks; that no case of more does is no chance.
FEW = 20
# Verdicts as a document has them.
OUTCOMES = tuple(verdict.name for verdict in Verdict)
PASSING = tuple(verdict.name for verdict in Verdict if verdict.passed)
# What is shown of a failure.
TOLD = ("case", "verdict", "explanation", "replay")
# Upper bounds of error over allowed error. What passes is at most 1.
BUCKETS = (0.001, 0.01, 0.03, 0.1, 0.3, 0.5, 1.0)


def worst(outcomes: Iterable[str]) -> str:
    """A run is as good as its worst part; a run of nothing is a fault."""
    return Verdict.worst(Verdict[outcome] for outcome in outcomes).name


@dataclass(slots=True)
class Histogram:
    """How much of what was allowed the cases of one dtype used that passed."""

    counts: list[int] = field(default_factory=lambda: [0] * len(BUCKETS))
    most: float = 0.0

    def add(self, used: float) -> None:
        self.counts[bisect_left(BUCKETS, used)] += 1
        self.most = max(self.most, used)

    def __add__(self, other: "Histogram") -> "Histogram":
        counts = [one + two for one, two in zip(self.counts, other.counts, strict=True)]
        return Histogram(counts, max(self.most, other.most))


@dataclass(slots=True)
class Pace:
    """How long cases of about one size took, from one that was judged to the next."""

    cases: int = 0
    seconds: float = 0.0
    most: float = 0.0

    def add(self, seconds: float) -> None:
        self.cases += 1
        self.seconds = round(self.seconds + seconds, 6)
        self.most = max(self.most, round(seconds, 6))

    def __add__(self, other: "Pace") -> "Pace":
        seconds = round(self.seconds + other.seconds, 6)
        return Pace(self.cases + other.cases, seconds, max(self.most, other.most))


def size_of(case: Case) -> str:
    """The power of two that has room for its tokens."""
    return str(1 << (case.tokens - 1).bit_length())


@dataclass(slots=True)
class Tally:
    """What was seen of one candidate."""

    verdicts: Counter[str] = field(default_factory=Counter)
    # How many cases the candidate does not support, by its reason.
    refused: Counter[str] = field(default_factory=Counter)
    # On how many cases fewer than was asked for it was judged: it does not support the others.
    lacking: int = 0
    # How many cases failed as is listed of the candidate, by the bug's key and link.
    known: Counter[str] = field(default_factory=Counter)
    elements: int = 0
    # Keys that it emitted and that nothing was compared with.
    uncompared: tuple[str, ...] = ()
    # Cases in which plain training was asked again, and what it then said decided for a pass.
    asked_again: int = 0
    # Cases that passed with several ranks to a sequence, and those of them without a word between
    # ranks.
    shared: int = 0
    silent: int = 0
    # By dtype.
    used: dict[str, Histogram] = field(default_factory=dict)
    # By situation, how cases came out in which it was met.
    situations: dict[str, Counter[str]] = field(default_factory=dict)
    # By how many tokens a case has.
    pace: dict[str, Pace] = field(default_factory=dict)
    # What it was asked for, and what of it was judged.
    coverage: Coverage = field(default_factory=Coverage)
    bounds: Bounds = field(default_factory=Bounds)
    leanings: Leanings = field(default_factory=Leanings)
    # Records of the failures that were looked for in each shard, shrunk; the smallest first.
    failures: list[dict[str, Any]] = field(default_factory=list)
    # How many cases nobody could judge, by dtype and by the tensor that rounding hides most of.
    unjudgeable: dict[str, Counter[str]] = field(default_factory=dict)
    # Gradients that were compared in cases that passed, and how many are zero everywhere.
    gradients: int = 0
    zeros: int = 0
    # Cases that passed and whose own step at sp 1 kept their replicas and micro-batches.
    kept: int = 0
    # How many cases failed, by what is seen of each: the tensor or fault it begins with, and what
    # that looks like.
    marks: Counter[str] = field(default_factory=Counter)
    # The first failure of each new mark in this run, and how many are wanted; none if the tally
    # was read or added up.
    found: "dict[str, Comparison]" = field(default_factory=dict, compare=False)
    wanted: int = field(default=1, compare=False)
    # The candidate's limits, as soon as a case was outside them, and how many cases were.
    limits: str = field(default="", compare=False)
    beyond: int = field(default=0, compare=False)

    def add(
        self, comparison: "Comparison", situations: Iterable[str] = (), seconds: float = 0.0
    ) -> None:
        self.verdicts[comparison.verdict.name] += 1
        for name in situations:
            self.situations.setdefault(name, Counter())[comparison.verdict.name] += 1
        self.coverage.add(comparison)
        self.uncompared = tuple(sorted({*self.uncompared, *comparison.uncompared}))
        if comparison.verdict is not Verdict.UNSUPPORTED:
            self.bounds.add(comparison)
            self.pace.setdefault(size_of(comparison.case), Pace()).add(seconds)
            self.elements += comparison.elements
        elif comparison.swallowed:
            dtype, (worst_of_all, *_) = comparison.case.dtype, comparison.swallowed
            self.unjudgeable.setdefault(dtype, Counter())[worst_of_all] += 1
        else:
            self.refused[comparison.reason] += 1
            if comparison.limits:
                self.limits, self.beyond = comparison.limits, self.beyond + 1
        if comparison.verdict is Verdict.KNOWN:
            self.known[comparison.reason] += 1
        if comparison.verdict.passed:
            self.asked_again += comparison.asked_again
            self.shared += comparison.case.sp > 1
            self.silent += comparison.silent
            self.gradients += len(comparison.gradients)
            apart = comparison.case.dp * comparison.case.micro_batches > 1
            self.kept += apart and is_kept(comparison.case)
            self.zeros += sum(gradient.zero for gradient in comparison.gradients)
            # What equals plain training bit by bit adds nothing to plain training's own error.
            used = 0.0 if comparison.verdict.name == "EQUAL" else comparison.used
            self.used.setdefault(comparison.case.dtype, Histogram()).add(used)
            self.leanings.add(comparison)

    def fail(self, comparison: "Comparison", mark: str, known: Iterable[str]) -> bool:
        """Count a case that failed; whether that is news."""
        self.marks[mark] += 1
        if mark in self.found or mark in known:
            return False
        self.found[mark] = comparison
        return True

    @property
    def is_done(self) -> bool:
        """Whether enough failures were found, so that nothing more is asked."""
        return len(self.found) >= self.wanted

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            verdicts=self.verdicts + other.verdicts,
            refused=self.refused + other.refused,
            lacking=self.lacking + other.lacking,
            known=self.known + other.known,
            elements=self.elements + other.elements,
            uncompared=tuple(sorted({*self.uncompared, *other.uncompared})),
            asked_again=self.asked_again + other.asked_again,
            shared=self.shared + other.shared,
            silent=self.silent + other.silent,
            used=together(self.used, other.used),
            situations=together(self.situations, other.situations),
            pace=together(self.pace, other.pace),
            coverage=self.coverage + other.coverage,
            bounds=self.bounds + other.bounds,
            leanings=self.leanings + other.leanings,
            failures=sorted([*self.failures, *other.failures], key=_size),
            unjudgeable=together(self.unjudgeable, other.unjudgeable),
            gradients=self.gradients + other.gradients,
            zeros=self.zeros + other.zeros,
            kept=self.kept + other.kept,
            marks=self.marks + other.marks,
        )

    @property
    def judged(self) -> int:
        return self.verdicts.total() - self.verdicts["UNSUPPORTED"]

    @property
    def failed(self) -> bool:
        """Whether a case failed, after which no more may have been asked."""
        return any(Verdict[name].failed for name in self.verdicts)

    @property
    def hidden(self) -> int:
        """On how many cases nobody could judge it: rounding hides too much in their dtype."""
        return sum(counts.total() for counts in self.unjudgeable.values())

    @property
    def passed(self) -> int:
        return sum(self.verdicts[name] for name in PASSING)

    @property
    def most(self) -> float:
        """The largest error, as a share of what was allowed, in a case that passed."""
        return max((histogram.most for histogram in self.used.values()), default=0.0)

    @property
    def verdict(self) -> str:
        """The worst; what was left out counts too, and what only all cases together show."""
        seen = [name for name in self.verdicts if name != "UNSUPPORTED"] or ["FAULT"]
        gaps = ["FAULT"] if self.lacking or self.is_unshared or self.unexamined else []
        return worst([*seen, *gaps, *(["DIVERGED"] if self.leans else [])])

    @property
    def unexamined(self) -> list[str]:
        """What was asked for and not examined; a failure ends what is asked."""
        return [] if self.failed else list(self.coverage.lacks())

    @property
    def leans(self) -> list[str]:
        """What leans to one side over all cases that passed."""
        return list(self.leanings.told())

    @property
    def is_unshared(self) -> bool:
        """Whether sequences were never cut so that one rank needed anything of another."""
        return self.silent == self.shared > FEW

    def record(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "judged": self.judged,
            "verdicts": dict(self.verdicts),
            "refused": dict(self.refused),
            "unjudgeable": {dtype: dict(counts) for dtype, counts in self.unjudgeable.items()},
            "lacking": self.lacking,
            "known": dict(self.known),
            "elements": self.elements,
            "uncompared": list(self.uncompared),
            "asked_again": self.asked_again,
            "shared": self.shared,
            "silent": self.silent,
            "used": self.most,
            "histogram": {dtype: asdict(histogram) for dtype, histogram in self.used.items()},
            "situations": {name: dict(counts) for name, counts in self.situations.items()},
            "pace": {size: asdict(pace) for size, pace in self.pace.items()},
            "coverage": self.coverage.record(),
            "unexamined": self.unexamined,
            "bounds": asdict(self.bounds),
            "leanings": self.leanings.record(),
            "leans": self.leans,
            "failures": self.failures,
            "gradients": self.gradients,
            "zeros": self.zeros,
            "kept": self.kept,
            "marks": dict(self.marks),
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Tally":
        return cls(
            verdicts=Counter(record["verdicts"]),
            refused=Counter(record["refused"]),
            lacking=record["lacking"],
            known=Counter(record["known"]),
            elements=record["elements"],
            uncompared=tuple(record["uncompared"]),
            asked_again=record["asked_again"],
            shared=record["shared"],
            silent=record["silent"],
            used={dtype: Histogram(**each) for dtype, each in record["histogram"].items()},
            situations={name: Counter(each) for name, each in record["situations"].items()},
            pace={size: Pace(**each) for size, each in record["pace"].items()},
            coverage=Coverage.from_record(record["coverage"]),
            bounds=Bounds(**record["bounds"]),
            leanings=Leanings.from_record(record["leanings"]),
            failures=sorted(record["failures"], key=_size),
            unjudgeable={dtype: Counter(each) for dtype, each in record["unjudgeable"].items()},
            gradients=record["gradients"],
            zeros=record["zeros"],
            kept=record["kept"],
            marks=Counter(record["marks"]),
        )

    def is_sound(self) -> bool:
        """Whether every case that passed is in a histogram, and every failure explained."""
        counted = [count for histogram in self.used.values() for count in histogram.counts]
        return (
            min(
                self.lacking, self.elements, self.asked_again, *self.verdicts.values(), *counted, 0
            )
            == 0
            and min(self.refused.values(), default=1) > 0
            and all(min(counts.values(), default=0) > 0 for counts in self.unjudgeable.values())
            and self.refused.total() + self.hidden == self.verdicts["UNSUPPORTED"]
            and min(self.known.values(), default=1) > 0
            and self.known.total() == self.verdicts["KNOWN"]
            and len(counted) == len(BUCKETS) * len(self.used)
            and sum(counted) == self.passed
            and 0 <= self.silent <= self.shared <= self.passed
            and 0 <= self.zeros <= self.gradients
            and 0 <= self.kept <= self.passed
            and min(self.marks.values(), default=1) > 0
            and self.marks.total()
            == sum(count for name, count in self.verdicts.items() if Verdict[name].failed)
            and sum(pace.cases for pace in self.pace.values()) <= self.judged
            and all(
                0 < count <= self.verdicts[verdict]
                for counts in self.situations.values()
                for verdict, count in counts.items()
            )
            and all(
                size.isdecimal() and 0 <= pace.most <= pace.seconds + 1e-5
                for size, pace in self.pace.items()
            )
            and self.coverage.is_sound()
            and self.bounds.is_sound()
            and self.leanings.is_sound()
            and all(type(failure[name]) is str for failure in self.failures for name in TOLD)
        )


def different(failures: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first of those that begin with the same tensor or fault and have one name."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for failure in failures:
        found.setdefault(_looks(failure), failure)
    return list(found.values())


def _looks(failure: dict[str, Any]) -> tuple[Any, ...]:
    first, fault, looks = failure["first"], failure["fault"], failure["looks"]
    return (
        failure["verdict"],
        first and first["key"],
        fault and (fault["kind"], fault["last_key"]),
        looks[0]["name"] if looks else "",
    )


def _size(failure: dict[str, Any]) -> tuple[int, int, int, str]:
    case = parse(failure["case"])
    return case.tokens, case.ranks, len(failure["case"]), failure["case"]
