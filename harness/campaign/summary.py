"""What a run of `check` found, as data: added up, written, read back. Needs no torch."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from harness.campaign.bounds import Bounds
from harness.campaign.coverage import Coverage, of_any_layer
from harness.campaign.digest import add_up, digest, is_digest
from harness.campaign.leaning import Leaning, told
from harness.campaign.request import Request
from harness.case import Case, Dtype, parse
from harness.outside import fits
from harness.verdict import Verdict

if TYPE_CHECKING:
    from harness.compare import Comparison

FORMAT = 9
# So many cases may need nothing of other ranks; that no case of more does is no chance.
FEW = 20
NOTHING: Final = digest([])
INTERRUPTED: Final = "interrupted"
LIMIT: Final = "limit"
Ended = Literal["", "interrupted", "limit"]
DTYPES = get_args(Dtype)
# Verdicts as a document has them.
OUTCOMES = tuple(verdict.name for verdict in Verdict)
PASSING = tuple(verdict.name for verdict in Verdict if verdict.passed)
# What is shown of a failure, and of where ranks ran.
TOLD = ("case", "verdict", "explanation", "replay")
PLACE = ("device", "devices", "transport", "ranks")
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
    # By dtype and tensor.
    leanings: dict[str, dict[str, Leaning]] = field(default_factory=dict)
    # Records of the first failure in each shard, shrunk; the smallest first.
    failures: list[dict[str, Any]] = field(default_factory=list)
    # How many cases nobody could judge, by dtype and by the tensor that rounding hides most of.
    unjudgeable: dict[str, Counter[str]] = field(default_factory=dict)
    # Of cases that passed, the gradients that were compared, and those that are zero everywhere.
    gradients: int = 0
    zeros: int = 0
    # That of this run; there is none where the tally was read or added up.
    failure: "Comparison | None" = field(default=None, compare=False)
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
            self.bounds.add(comparison.case)
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
            self.zeros += sum(gradient.zero for gradient in comparison.gradients)
            # What equals plain training bit by bit adds nothing to plain training's own error.
            used = 0.0 if comparison.verdict.name == "EQUAL" else comparison.used
            self.used.setdefault(comparison.case.dtype, Histogram()).add(used)
            self._lean(comparison)

    def _lean(self, comparison: "Comparison") -> None:
        for result in comparison.keys:
            if result.lean is not None:
                leanings = self.leanings.setdefault(comparison.case.dtype, {})
                leanings.setdefault(of_any_layer(result.key), Leaning()).add(result.lean)

    def __add__(self, other: "Tally") -> "Tally":
        used = dict(self.used)
        for dtype, histogram in other.used.items():
            used[dtype] = used.get(dtype, Histogram()) + histogram
        pace = dict(self.pace)
        for size, its in other.pace.items():
            pace[size] = pace.get(size, Pace()) + its
        situations = {
            name: self.situations.get(name, Counter()) + other.situations.get(name, Counter())
            for name in {**self.situations, **other.situations}
        }
        leanings = {
            dtype: {
                name: self.leanings.get(dtype, {}).get(name, Leaning())
                + other.leanings.get(dtype, {}).get(name, Leaning())
                for name in {**self.leanings.get(dtype, {}), **other.leanings.get(dtype, {})}
            }
            for dtype in {**self.leanings, **other.leanings}
        }
        failures = sorted([*self.failures, *other.failures], key=_size)
        return Tally(
            self.verdicts + other.verdicts,
            self.refused + other.refused,
            self.lacking + other.lacking,
            self.known + other.known,
            self.elements + other.elements,
            tuple(sorted({*self.uncompared, *other.uncompared})),
            self.asked_again + other.asked_again,
            self.shared + other.shared,
            self.silent + other.silent,
            used,
            situations,
            pace,
            self.coverage + other.coverage,
            self.bounds + other.bounds,
            leanings,
            failures,
            {
                dtype: sum((t.unjudgeable.get(dtype, Counter()) for t in (self, other)), Counter())
                for dtype in {**self.unjudgeable, **other.unjudgeable}
            },
            self.gradients + other.gradients,
            self.zeros + other.zeros,
        )

    @property
    def judged(self) -> int:
        return self.verdicts.total() - self.verdicts["UNSUPPORTED"]

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
        stopped = any(Verdict[name].failed for name in self.verdicts)
        return [] if stopped else list(self.coverage.lacks())

    @property
    def leans(self) -> list[str]:
        """What leans to one side over all cases that passed."""
        return list(told(self.leanings))

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
            "leanings": {
                dtype: {name: asdict(each) for name, each in by_tensor.items()}
                for dtype, by_tensor in self.leanings.items()
            },
            "leans": self.leans,
            "failures": self.failures,
            "gradients": self.gradients,
            "zeros": self.zeros,
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Tally":
        used = {dtype: Histogram(**each) for dtype, each in record["histogram"].items()}
        situations = {name: Counter(each) for name, each in record["situations"].items()}
        pace = {size: Pace(**each) for size, each in record["pace"].items()}
        leanings = {
            dtype: {name: Leaning(**each) for name, each in by_tensor.items()}
            for dtype, by_tensor in record["leanings"].items()
        }
        failures = sorted(record["failures"], key=_size)
        return cls(
            Counter(record["verdicts"]),
            Counter(record["refused"]),
            record["lacking"],
            Counter(record["known"]),
            record["elements"],
            tuple(record["uncompared"]),
            record["asked_again"],
            record["shared"],
            record["silent"],
            used,
            situations,
            pace,
            Coverage.from_record(record["coverage"]),
            Bounds(**record["bounds"]),
            leanings,
            failures,
            {dtype: Counter(each) for dtype, each in record["unjudgeable"].items()},
            record["gradients"],
            record["zeros"],
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
            and all(
                dtype in DTYPES and all(map(Leaning.is_sound, each.values()))
                for dtype, each in self.leanings.items()
            )
            and all(type(failure[name]) is str for failure in self.failures for name in TOLD)
        )


@dataclass(slots=True, kw_only=True)
class Summary:
    """A campaign, or the shards of it that were examined."""

    request: Request
    # No case of the campaign needs more of them.
    ranks: int
    versions: dict[str, str]
    # What cannot be seen where it ran; nothing in particular in most places.
    unseen: str = ""
    # How many cases the campaign has: at most as many as were asked for, because none is twice.
    size: int
    # A digest of every case of the campaign: shards of one campaign agree on it.
    drawn: str
    # How many of its cases were begun in these shards, and a digest of them: where all were, it is
    # that of the campaign.
    begun: int = 0
    judged: str = NOTHING
    of: int
    shards: tuple[int, ...]
    # Shards that should have been merged and were not; nothing is known of their cases.
    missing: tuple[int, ...] = ()
    tallies: dict[str, Tally]
    # Zeros as well: what was never met tells as much.
    situations: Counter[str]
    # Of cases that some candidate does not support.
    refused: Counter[str] = field(default_factory=Counter)
    cases: int = 0
    seconds: float = 0.0
    # Where ranks ran, and on what.
    placement: dict[str, str] = field(default_factory=dict)
    # Why not every case was judged, where somebody or --limit ended it before; or nothing.
    ended: Ended = ""

    def begin(self, case: Case) -> None:
        """One of the campaign's cases is judged here."""
        self.begun += 1
        self.judged = add_up((self.judged, digest([case])))

    @property
    def verdict(self) -> str:
        gaps = ["FAULT"] if self.missing or self.ended == INTERRUPTED else []
        return worst([*gaps, *(tally.verdict for tally in self.tallies.values())])

    def record(self) -> dict[str, Any]:
        campaign = {**asdict(self.request), "ranks": self.ranks}
        return {
            "format": FORMAT,
            "campaign": {k: list(v) if type(v) is tuple else v for k, v in campaign.items()},
            "versions": self.versions,
            "unseen": self.unseen,
            "size": self.size,
            "drawn": self.drawn,
            "begun": self.begun,
            "judged": self.judged,
            "shards": {
                "of": self.of,
                "examined": list(self.shards),
                "missing": list(self.missing),
            },
            "placement": self.placement,
            "ended": self.ended,
            "verdict": self.verdict,
            "cases": self.cases,
            "seconds": self.seconds,
            "situations": dict(self.situations),
            "refused": dict(self.refused),
            "buckets": list(BUCKETS),
            "candidates": {name: tally.record() for name, tally in self.tallies.items()},
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Summary":
        """Some error where it is not one; what is derived must be as it would be written."""
        shards = record["shards"]
        campaign: dict[str, Any] = {
            name: tuple(value) if type(value) is list else value
            for name, value in record["campaign"].items()
        }
        summary = cls(
            ranks=campaign.pop("ranks"),
            request=Request(**campaign),
            versions=dict(record["versions"]),
            unseen=record["unseen"],
            size=record["size"],
            drawn=record["drawn"],
            begun=record["begun"],
            judged=record["judged"],
            of=shards["of"],
            shards=tuple(shards["examined"]),
            missing=tuple(shards["missing"]),
            tallies={name: Tally.from_record(t) for name, t in record["candidates"].items()},
            situations=Counter(record["situations"]),
            refused=Counter(record["refused"]),
            cases=record["cases"],
            seconds=record["seconds"],
            placement=dict(record["placement"]),
            ended=record["ended"],
        )
        if summary.record() != record or not summary._is_sound():
            raise ValueError("the parts of the record contradict one another")
        return summary

    def _is_sound(self) -> bool:
        shards = {*self.shards, *self.missing}
        judged = [tally.judged for tally in self.tallies.values()]
        return (
            fits(self, Summary)
            and min(self.cases, self.seconds, *self.situations.values(), 0) == 0
            and min(self.refused.values(), default=1) > 0
            and self.refused.keys() <= self.situations.keys()
            and 1 <= self.of <= self.size <= self.request.count
            and len(self.shards) > 0
            and is_digest(self.judged)
            and 0 <= self.begun <= self._share()
            # All of the campaign is in, or it is another one.
            and (self.begun < self.size or self.judged == self.drawn)
            and all(1 <= shard <= self.of for shard in shards)
            and len(shards) == len(self.shards) + len(self.missing)
            and self.tallies.keys() == set(self.request.candidates)
            and all(tally.is_sound() for tally in self.tallies.values())
            and max(judged) <= min(self.cases, self._share())
            and self.cases <= sum(judged)
            and max(self.situations.values(), default=0) <= self.cases
            and not (self.placement and set(PLACE) - self.placement.keys())
            # Spared the rest of its cases is a candidate that failed, who was stopped, and one for
            # which there are no more that it supports.
            and all(
                self.ended
                or tally.failures
                or (tally.verdicts["UNSUPPORTED"] and not tally.lacking)
                or tally.judged + tally.lacking >= self._share()
                for tally in self.tallies.values()
            )
        )

    def _share(self) -> int:
        """How many cases of the campaign are in these shards."""
        return sum(len(range(shard - 1, self.size, self.of)) for shard in self.shards)


def _size(failure: dict[str, Any]) -> tuple[int, int, int, str]:
    case = parse(failure["case"])
    return case.tokens, case.ranks, len(failure["case"]), failure["case"]
