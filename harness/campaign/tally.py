"""The tally of one candidate, as data: added up, written, read back. Needs no torch."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from harness.against import needs_own_mesh
from harness.campaign.bias import Leanings
from harness.campaign.bounds import Bounds
from harness.campaign.counts import Amount, Count, add_by_name
from harness.campaign.coverage import Coverage
from harness.case import Case, parse
from harness.untrusted import fitted
from harness.verdict import Verdict

if TYPE_CHECKING:
    from harness.compare import Comparison

# In so many cases at sp > 1 it may be chance that no rank needs anything of another.
MOST_SILENT = 20
# Names of verdicts, as a document has them.
OUTCOMES = tuple(verdict.name for verdict in Verdict)
PASSING = tuple(verdict.name for verdict in Verdict if verdict.passed)
# Texts of a failure's record that tables show.
SHOWN_TEXTS = ("case", "verdict", "explanation", "replay")
# Upper bounds of error over allowed error. The error of a case that passes is at most 1.
BUCKETS = (0.001, 0.01, 0.03, 0.1, 0.3, 0.5, 1.0)
# The fields of a candidate in a document, in this order.
DOCUMENT_FIELDS = (
    *("verdict", "judged", "verdicts", "refused", "unjudgeable", "lacking", "known", "elements"),
    *("uncompared", "asked_again", "shared", "silent", "used", "histogram", "situations", "pace"),
    *("coverage", "unexamined", "bounds", "leanings", "leans", "failures", "gradients", "zeros"),
    *("kept", "marks", "without_effect"),
)


def worst(outcomes: Iterable[str]) -> str:
    """Return the worst outcome; FAULT if there is none, because a run of nothing is a fault."""
    return Verdict.worst(Verdict[outcome] for outcome in outcomes).name


class Histogram(msgspec.Struct, forbid_unknown_fields=True):
    """How much of the allowed error the passing cases of one dtype used."""

    counts: Annotated[
        list[Count], msgspec.Meta(min_length=len(BUCKETS), max_length=len(BUCKETS))
    ] = msgspec.field(default_factory=lambda: [0] * len(BUCKETS))
    most: Amount = 0.0

    def add(self, used: float) -> None:
        self.counts[bisect_left(BUCKETS, used)] += 1
        self.most = max(self.most, used)

    def __add__(self, other: "Histogram") -> "Histogram":
        counts = [one + two for one, two in zip(self.counts, other.counts, strict=True)]
        return Histogram(counts, max(self.most, other.most))


class Pace(msgspec.Struct, forbid_unknown_fields=True):
    """How long cases of about one size took, each from the end of the case before it."""

    cases: Count = 0
    seconds: Amount = 0.0
    most: Amount = 0.0

    def add(self, seconds: float) -> None:
        self.cases += 1
        self.seconds = round(self.seconds + seconds, 6)
        self.most = max(self.most, round(seconds, 6))

    def __add__(self, other: "Pace") -> "Pace":
        seconds = round(self.seconds + other.seconds, 6)
        return Pace(self.cases + other.cases, seconds, max(self.most, other.most))


def size_class(case: Case) -> str:
    """Return the smallest power of two that is at least the number of tokens."""
    return str(1 << (case.tokens - 1).bit_length())


class Tally(msgspec.Struct):
    """The counts of all comparisons of one candidate."""

    verdicts: Counter[str] = msgspec.field(default_factory=Counter)
    # How many cases the candidate does not support, by its reason.
    refused: Counter[str] = msgspec.field(default_factory=Counter)
    # How many of the requested cases it was not judged on, because it refused too many.
    lacking: Count = 0
    # How many cases failed as is listed of the candidate, by the bug's key and link.
    known: Counter[str] = msgspec.field(default_factory=Counter)
    elements: Count = 0
    # Keys that it emitted and that were compared with nothing.
    uncompared: list[str] = []
    # Cases that passed only after plain training was asked again.
    asked_again: Count = 0
    # Cases that passed at sp > 1, and those of them in which no rank sent anything to another.
    shared: Count = 0
    silent: Count = 0
    # By dtype.
    used: dict[str, Histogram] = msgspec.field(name="histogram", default_factory=dict)
    # By situation, the verdicts of the cases that were in it.
    situations: dict[str, Counter[str]] = {}
    # By size class.
    pace: dict[str, Pace] = {}
    coverage: Coverage = msgspec.field(default_factory=Coverage)
    bounds: Bounds = msgspec.field(default_factory=Bounds)
    leanings: Leanings = msgspec.field(default_factory=Leanings)
    # Records of the failures that each shard wanted, shrunk; the smallest first.
    failures: list[dict[str, Any]] = []
    # How many cases could not be judged, by dtype and by the tensor that rounding hides most.
    unjudgeable: dict[str, Counter[str]] = {}
    # Gradients that were compared in cases that passed, and how many are zero everywhere.
    gradients: Count = 0
    zeros: Count = 0
    # Cases that passed and whose own step at sp 1 kept their replicas and micro-batches.
    kept: Count = 0
    # How many cases failed, by their marks: the verdict, the tensor or fault that the failure
    # begins with, and what its tensors look like.
    marks: Counter[str] = msgspec.field(default_factory=Counter)
    # Values of settings of the step that changed nothing in a few cases that passed.
    without_effect: list[str] = []

    def add(
        self, comparison: "Comparison", situations: Iterable[str] = (), seconds: float = 0.0
    ) -> None:
        """Count one comparison."""
        self.verdicts[comparison.verdict.name] += 1
        for name in situations:
            self.situations.setdefault(name, Counter())[comparison.verdict.name] += 1
        self.coverage.add(comparison)
        self.uncompared = sorted({*self.uncompared, *comparison.measured.uncompared})
        if comparison.verdict is not Verdict.UNSUPPORTED:
            self.bounds.add(comparison)
            self.pace.setdefault(size_class(comparison.case), Pace()).add(seconds)
            self.elements += comparison.measured.elements
        elif comparison.swallowed:
            dtype, (most_hidden, *_) = comparison.case.dtype, comparison.swallowed
            self.unjudgeable.setdefault(dtype, Counter())[most_hidden] += 1
        else:
            self.refused[comparison.reason] += 1
        if comparison.verdict is Verdict.KNOWN:
            self.known[comparison.reason] += 1
        if comparison.verdict.passed:
            self._add_pass(comparison)

    def _add_pass(self, comparison: "Comparison") -> None:
        case = comparison.case
        self.asked_again += comparison.asked_again
        self.shared += case.sp > 1
        self.silent += comparison.measured.silent
        self.gradients += len(comparison.gradients)
        has_parts = case.dp * case.micro_batches > 1
        self.kept += has_parts and needs_own_mesh(case)
        self.zeros += sum(gradient.zero for gradient in comparison.gradients)
        # A trace that is bitwise equal to plain training has no error beyond plain training's own.
        used = 0.0 if comparison.verdict.name == "EQUAL" else comparison.measured.used
        self.used.setdefault(case.dtype, Histogram()).add(used)
        self.leanings.add(comparison)

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
            used=add_by_name(self.used, other.used),
            situations=add_by_name(self.situations, other.situations),
            pace=add_by_name(self.pace, other.pace),
            coverage=self.coverage + other.coverage,
            bounds=self.bounds + other.bounds,
            leanings=self.leanings + other.leanings,
            failures=sorted([*self.failures, *other.failures], key=_failure_size),
            unjudgeable=add_by_name(self.unjudgeable, other.unjudgeable),
            gradients=self.gradients + other.gradients,
            zeros=self.zeros + other.zeros,
            kept=self.kept + other.kept,
            marks=self.marks + other.marks,
            without_effect=sorted({*self.without_effect, *other.without_effect}),
        )

    @property
    def judged(self) -> int:
        """How many cases were judged: all but those that are UNSUPPORTED."""
        return self.verdicts.total() - self.verdicts["UNSUPPORTED"]

    @property
    def failed(self) -> bool:
        """Whether a case failed; the candidate may then have been judged on no further case."""
        return any(Verdict[name].failed for name in self.verdicts)

    @property
    def hidden(self) -> int:
        """How many cases could not be judged, because rounding hides too much in their dtype."""
        return sum(counts.total() for counts in self.unjudgeable.values())

    @property
    def passed(self) -> int:
        return sum(self.verdicts[name] for name in PASSING)

    @property
    def most(self) -> float:
        """The largest error of a case that passed, as a share of the allowed error."""
        return max((histogram.most for histogram in self.used.values()), default=0.0)

    @property
    def verdict(self) -> str:
        """The worst verdict, also of what is missing and of what all cases show together."""
        seen = [name for name in self.verdicts if name != "UNSUPPORTED"] or ["FAULT"]
        gaps = ["FAULT"] if self.lacking or self.is_unshared or self.unexamined else []
        return worst([*seen, *gaps, *(["DIVERGED"] if self.leans else [])])

    @property
    def unexamined(self) -> list[str]:
        """The requirements that were not examined; none after a failure, which ends the run."""
        return [] if self.failed else list(self.coverage.lacks())

    @property
    def leans(self) -> list[str]:
        """The tensors that lean to one side over all cases that passed."""
        return list(self.leanings.lines())

    @property
    def is_unshared(self) -> bool:
        """Whether no rank needed anything of another in any of many cases at sp > 1."""
        return self.silent == self.shared > MOST_SILENT

    def record(self) -> dict[str, Any]:
        """Return the tally as a document has it, with what is derived from its counts."""
        derived = {
            "verdict": self.verdict,
            "judged": self.judged,
            "used": self.most,
            "unexamined": self.unexamined,
            "leanings": self.leanings.record(),
            "leans": self.leans,
        }
        record = msgspec.to_builtins(self) | derived
        return {name: record[name] for name in DOCUMENT_FIELDS}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Tally":
        tally = fitted({**record, "leanings": {"by_dtype": record["leanings"]}}, cls)
        tally.failures.sort(key=_failure_size)
        return tally

    def is_sound(self) -> bool:
        """Whether the counts fit each other, as they do if comparisons were added one by one."""
        counters = (self.refused, self.known, self.marks)
        return (
            all(min(counter.values(), default=1) > 0 for counter in counters)
            and all(min(hidden.values(), default=0) > 0 for hidden in self.unjudgeable.values())
            and self.refused.total() + self.hidden == self.verdicts["UNSUPPORTED"]
            and self.known.total() == self.verdicts["KNOWN"]
            and sum(sum(histogram.counts) for histogram in self.used.values()) == self.passed
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
            and all(
                type(failure[name]) is str for failure in self.failures for name in SHOWN_TEXTS
            )
        )


def distinct_failures(failures: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first of the failures that begin with one tensor or fault and have one name."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for failure in failures:
        found.setdefault(_signature(failure), failure)
    return list(found.values())


def _signature(failure: dict[str, Any]) -> tuple[Any, ...]:
    first, fault, looks = failure["first"], failure["fault"], failure["looks"]
    return (
        failure["verdict"],
        first and first["key"],
        fault and (fault["kind"], fault["last_key"]),
        looks[0]["name"] if looks else "",
    )


def _failure_size(failure: dict[str, Any]) -> tuple[int, int, int, str]:
    case = parse(failure["case"])
    return case.tokens, case.ranks, len(failure["case"]), failure["case"]
