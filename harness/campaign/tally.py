"""What was seen of one candidate, as data: added up, written, read back. Needs no torch."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from harness.against import is_kept
from harness.campaign.bias import Leanings
from harness.campaign.bounds import Bounds
from harness.campaign.counts import Amount, Whole, together
from harness.campaign.coverage import Coverage
from harness.case import Case, parse
from harness.untrusted import fitted
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
# What a document has of a candidate, in this order.
DOCUMENT = (
    *("verdict", "judged", "verdicts", "refused", "unjudgeable", "lacking", "known", "elements"),
    *("uncompared", "asked_again", "shared", "silent", "used", "histogram", "situations", "pace"),
    *("coverage", "unexamined", "bounds", "leanings", "leans", "failures", "gradients", "zeros"),
    *("kept", "marks"),
)


def worst(outcomes: Iterable[str]) -> str:
    """A run is as good as its worst part; a run of nothing is a fault."""
    return Verdict.worst(Verdict[outcome] for outcome in outcomes).name


class Histogram(msgspec.Struct, forbid_unknown_fields=True):
    """How much of what was allowed the cases of one dtype used that passed."""

    counts: Annotated[
        list[Whole], msgspec.Meta(min_length=len(BUCKETS), max_length=len(BUCKETS))
    ] = msgspec.field(default_factory=lambda: [0] * len(BUCKETS))
    most: Amount = 0.0

    def add(self, used: float) -> None:
        self.counts[bisect_left(BUCKETS, used)] += 1
        self.most = max(self.most, used)

    def __add__(self, other: "Histogram") -> "Histogram":
        counts = [one + two for one, two in zip(self.counts, other.counts, strict=True)]
        return Histogram(counts, max(self.most, other.most))


class Pace(msgspec.Struct, forbid_unknown_fields=True):
    """How long cases of about one size took, from one that was judged to the next."""

    cases: Whole = 0
    seconds: Amount = 0.0
    most: Amount = 0.0

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


class Tally(msgspec.Struct, dict=True):
    """What was seen of one candidate."""

    verdicts: Counter[str] = msgspec.field(default_factory=Counter)
    # How many cases the candidate does not support, by its reason.
    refused: Counter[str] = msgspec.field(default_factory=Counter)
    # On how many cases fewer than was asked for it was judged: it does not support the others.
    lacking: Whole = 0
    # How many cases failed as is listed of the candidate, by the bug's key and link.
    known: Counter[str] = msgspec.field(default_factory=Counter)
    elements: Whole = 0
    # Keys that it emitted and that nothing was compared with.
    uncompared: list[str] = []
    # Cases in which plain training was asked again, and what it then said decided for a pass.
    asked_again: Whole = 0
    # Cases that passed with several ranks to a sequence, and those of them without a word between
    # ranks.
    shared: Whole = 0
    silent: Whole = 0
    # By dtype.
    used: dict[str, Histogram] = msgspec.field(name="histogram", default_factory=dict)
    # By situation, how cases came out in which it was met.
    situations: dict[str, Counter[str]] = {}
    # By how many tokens a case has.
    pace: dict[str, Pace] = {}
    # What it was asked for, and what of it was judged.
    coverage: Coverage = msgspec.field(default_factory=Coverage)
    bounds: Bounds = msgspec.field(default_factory=Bounds)
    leanings: Leanings = msgspec.field(default_factory=Leanings)
    # Records of the failures that were looked for in each shard, shrunk; the smallest first.
    failures: list[dict[str, Any]] = []
    # How many cases nobody could judge, by dtype and by the tensor that rounding hides most of.
    unjudgeable: dict[str, Counter[str]] = {}
    # Gradients that were compared in cases that passed, and how many are zero everywhere.
    gradients: Whole = 0
    zeros: Whole = 0
    # Cases that passed and whose own step at sp 1 kept their replicas and micro-batches.
    kept: Whole = 0
    # How many cases failed, by what is seen of each: the tensor or fault it begins with, and what
    # that looks like.
    marks: Counter[str] = msgspec.field(default_factory=Counter)

    # These are no fields, because no document has them: a run sets them.

    @cached_property
    def found(self) -> "dict[str, Comparison]":
        """The first failure of each mark that is new in this run."""
        return {}

    @cached_property
    def wanted(self) -> int:
        """How many of them are looked for."""
        return 1

    @cached_property
    def limits(self) -> str:
        """The candidate's limits, as soon as a case of this run was outside them."""
        return ""

    @cached_property
    def beyond(self) -> int:
        """How many cases of this run were outside its limits."""
        return 0

    def add(
        self, comparison: "Comparison", situations: Iterable[str] = (), seconds: float = 0.0
    ) -> None:
        self.verdicts[comparison.verdict.name] += 1
        for name in situations:
            self.situations.setdefault(name, Counter())[comparison.verdict.name] += 1
        self.coverage.add(comparison)
        self.uncompared = sorted({*self.uncompared, *comparison.uncompared})
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
            uncompared=sorted({*self.uncompared, *other.uncompared}),
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
        derived = {
            "verdict": self.verdict,
            "judged": self.judged,
            "used": self.most,
            "unexamined": self.unexamined,
            "leanings": self.leanings.record(),
            "leans": self.leans,
        }
        record = msgspec.to_builtins(self) | derived
        return {name: record[name] for name in DOCUMENT}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Tally":
        tally = fitted({**record, "leanings": {"by_dtype": record["leanings"]}}, cls)
        tally.failures.sort(key=_size)
        return tally

    def is_sound(self) -> bool:
        """Whether every case that passed is in a histogram, and every failure explained."""
        counts = (self.refused, self.known, self.marks)
        return (
            all(min(each.values(), default=1) > 0 for each in counts)
            and all(min(each.values(), default=0) > 0 for each in self.unjudgeable.values())
            and self.refused.total() + self.hidden == self.verdicts["UNSUPPORTED"]
            and self.known.total() == self.verdicts["KNOWN"]
            and sum(sum(each.counts) for each in self.used.values()) == self.passed
            and self.silent <= self.shared <= self.passed
            and self.zeros <= self.gradients
            and self.kept <= self.passed
            and self.marks.total()
            == sum(count for name, count in self.verdicts.items() if Verdict[name].failed)
            and sum(pace.cases for pace in self.pace.values()) <= self.judged
            and all(
                0 < count <= self.verdicts[verdict]
                for counts in self.situations.values()
                for verdict, count in counts.items()
            )
            and all(
                size.isdecimal() and pace.most <= pace.seconds + 1e-5
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
