"""One stage of an examination: the cases that it asks for, and how they came out."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from harness.campaign.bias import Leanings
from harness.campaign.coverage import Coverage
from harness.candidates import locate
from harness.candidates.published.bugs import Bug
from harness.candidates.published.library import Published
from harness.case import Case
from harness.compare import Comparison, Verdict, unsupported
from harness.conformance.pools import Pools
from harness.generation.situations import situations_of
from harness.generation.situations.needs import lacking
from harness.judge import Job
from harness.judge.known import listed, recognised
from harness.trace import GRADIENT, Kind

# Each costs a launch of ranks; after so many of a kind more would tell nothing new.
MOST_FAULTS = 16
# Each costs a deadline as well.
MOST_HANGS = 4
# A comparison of losses sees a difference from here on: what suites that compare them allow.
SEEN_BY_LOSS = 0.01
WRONG_ALONE = "wrong at sp 1 as well: its model rounds more than plain training does"


@dataclass(slots=True)
class Stage:
    """How its cases came out: counts, and the first failure of every kind."""

    verdicts: Counter[str] = field(default_factory=Counter)
    # Situation, verdict: how many cases.
    situations: dict[str, Counter[str]] = field(default_factory=dict)
    # What was wrong in how many cases.
    wrong: Counter[str] = field(default_factory=Counter)
    # Cases in which something was wrong and the loss right within a hundredth.
    unseen_by_loss: int = 0
    known: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    # The largest error as a share of its budget, of what passed.
    used: float = 0.0
    elements: int = 0
    # What was examined, in cases that the candidate supports.
    coverage: Coverage = field(default_factory=Coverage)
    # In what passed.
    leanings: Leanings = field(default_factory=Leanings)
    stood_in: set[str] = field(default_factory=set)
    # By verdict and name, the smallest case and how many there were.
    first: dict[tuple[str, str], tuple[Comparison, int]] = field(default_factory=dict)

    def add(self, comparison: Comparison) -> None:
        verdict = comparison.verdict
        self.verdicts[verdict.name] += 1
        if verdict is Verdict.UNSUPPORTED:
            self.refused[comparison.reason.partition(":")[0]] += 1
            return
        for situation in situations_of(comparison.case):
            self.situations.setdefault(situation, Counter())[verdict.name] += 1
        self.elements += comparison.elements
        self.coverage.add(comparison)
        self.stood_in.update(comparison.stood_in)
        if verdict.passed:
            self.used = max(self.used, comparison.used)
            self.leanings.add(comparison)
        else:
            self._add_failure(comparison)

    def _add_failure(self, comparison: Comparison) -> None:
        self.wrong.update(what_is_wrong(comparison))
        self.unseen_by_loss += is_unseen_by_loss(comparison)
        if comparison.verdict is Verdict.KNOWN:
            self.known[comparison.reason.partition(" ")[0]] += 1
            return
        kind = comparison.verdict.name, name_of(comparison)
        first, count = self.first.get(kind, (comparison, 0))
        smaller = min(first, comparison, key=lambda each: _size(each.case))
        self.first[kind] = smaller, count + 1

    def judged(self) -> int:
        """How many were run."""
        return self.verdicts.total() - self.verdicts[Verdict.UNSUPPORTED.name]


def stage_of(asked: Iterable[Case], candidate: Published, pools: Pools) -> Stage:
    """Every case on as many ranks as it needs.

    A listed fault that was seen often enough is no longer asked for. One that nobody listed may be
    behind any case, so that they end what is asked of these ranks.
    """
    stage = Stage()
    by_ranks: dict[int, list[Case]] = {}
    for case in asked:
        by_ranks.setdefault(case.ranks, []).append(case)
        if candidate.supports(case) is None:
            stage.coverage.ask(case)
    for ranks, batch in by_ranks.items():
        _on_ranks(ranks, batch, candidate, pools, stage)
    return stage


def _on_ranks(
    ranks: int, batch: Sequence[Case], candidate: Published, pools: Pools, stage: Stage
) -> None:
    named, faults, often = locate(candidate.name), Counter[Bug | None](), list[Bug]()

    def worth_asking() -> Iterator[Job]:
        for case in batch:
            bug = next((bug for bug in often if not lacking(case, bug.when)), None)
            # What cannot be run says so itself.
            if bug is None or candidate.supports(case) is not None:
                yield Job(case, named)
            else:
                stage.add(unsupported(case, named.name, f"{bug.key}, listed: seen often enough"))

    for comparison in pools.of(ranks).judge(worth_asking()):
        seen = blamed(recognised(comparison), pools)
        stage.add(seen)
        if seen.fault is None:
            continue
        bug = listed(seen)
        faults[bug] += 1
        if faults[bug] < (MOST_HANGS if seen.fault.kind is Kind.HUNG else MOST_FAULTS):
            continue
        if bug is None:
            return
        often.append(bug)


def blamed(seen: Comparison, pools: Pools) -> Comparison:
    """Make it unsupported if its batch is wrong by rounding at sp 1 as well.

    Nothing shared is to blame then. What is wrong there by more than rounding is kept: it may be
    the library's.
    """
    if seen.verdict is not Verdict.DIVERGED or seen.case.sp == 1:
        return seen
    alone = Job.again(seen, replace(seen.case, sp=1))
    there = pools.of(alone.case.ranks).judge_one(alone)
    if there.called == "low-precision":
        return unsupported(seen.case, seen.candidate, WRONG_ALONE)
    return seen


def name_of(comparison: Comparison) -> str:
    """What a failure is called; a verdict where it has no name."""
    return comparison.called or comparison.verdict.name


def what_is_wrong(comparison: Comparison) -> Iterable[str]:
    """Which of the things that must hold did not."""
    if comparison.fault:
        return ["no fault"]
    wrong = {result.key for result in comparison.keys if result.wrong}
    kinds = {
        "loss": "loss" in wrong,
        "losses of tokens": "nll" in wrong,
        "gradients": any(key.startswith(GRADIENT) for key in wrong),
        "every token once": bool(comparison.misfits),
    }
    # In an order that is the same in every process.
    return [kind for kind, holds in kinds.items() if holds]


def is_unseen_by_loss(comparison: Comparison) -> bool:
    """Whether who compares losses alone would have let it pass."""
    if comparison.loss is None:
        return False
    expected, got = comparison.loss
    return abs(got - expected) <= SEEN_BY_LOSS * abs(expected)


def _size(case: Case) -> tuple[int, int]:
    return case.ranks, case.tokens
