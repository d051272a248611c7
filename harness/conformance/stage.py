"""One stage of an examination: judge its cases, and count how they came out."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from harness.campaign.bias import Leanings
from harness.campaign.coverage import Coverage
from harness.candidates import locate
from harness.candidates.published.bugs import Bug
from harness.candidates.published.library import Published
from harness.case import Case
from harness.compare import Comparison, Verdict, unsupported_comparison
from harness.conformance.pools import Pools
from harness.generation.situations import situations_of
from harness.generation.situations.needs import lacking
from harness.judge import Job
from harness.judge.known import listed_bug, mark_known
from harness.trace import GRADIENT, Kind

# Each fault costs a launch of ranks; more than so many of one kind would show nothing new.
MOST_FAULTS = 16
# Each hang also costs a deadline.
MOST_HANGS = 4
# Suites that compare only losses allow a relative difference of so much.
SEEN_BY_LOSS = 0.01
WRONG_ALONE = "wrong at sp 1 as well: its model rounds more than plain training does"


@dataclass(slots=True)
class Stage:
    """How the cases of a stage came out: counts, and the smallest failure of every kind."""

    verdicts: Counter[str] = field(default_factory=Counter)
    # By situation, the verdicts of the cases that were in it.
    situations: dict[str, Counter[str]] = field(default_factory=dict)
    # By property, how many of the cases that did not pass broke it.
    wrong: Counter[str] = field(default_factory=Counter)
    # How many cases did not pass although the loss was right within a hundredth.
    unseen_by_loss: int = 0
    # By the key of a listed bug, how many cases failed as is listed.
    known: Counter[str] = field(default_factory=Counter)
    # By reason, how many cases the candidate does not support.
    refused: Counter[str] = field(default_factory=Counter)
    # The largest error of a case that passed, as a share of its budget.
    used: float = 0.0
    elements: int = 0
    # How much was judged of the cases that the candidate supports.
    coverage: Coverage = field(default_factory=Coverage)
    leanings: Leanings = field(default_factory=Leanings)
    # Packages that plain torch stood in for.
    stood_in: set[str] = field(default_factory=set)
    # By verdict and name, the smallest failure, and how many failures there were.
    first: dict[tuple[str, str], tuple[Comparison, int]] = field(default_factory=dict)

    def add(self, comparison: Comparison) -> None:
        """Count one comparison."""
        verdict = comparison.verdict
        self.verdicts[verdict.name] += 1
        if verdict is Verdict.UNSUPPORTED:
            self.refused[comparison.reason.partition(":")[0]] += 1
            return
        for situation in situations_of(comparison.case):
            self.situations.setdefault(situation, Counter())[verdict.name] += 1
        self.elements += comparison.measured.elements
        self.coverage.add(comparison)
        self.stood_in.update(comparison.measured.stood_in)
        if verdict.passed:
            self.used = max(self.used, comparison.measured.used)
            self.leanings.add(comparison)
        else:
            self._add_failure(comparison)

    def _add_failure(self, comparison: Comparison) -> None:
        self.wrong.update(broken_properties(comparison))
        self.unseen_by_loss += is_unseen_by_loss(comparison)
        if comparison.verdict is Verdict.KNOWN:
            self.known[comparison.reason.partition(" ")[0]] += 1
            return
        kind = comparison.verdict.name, failure_name(comparison)
        first, count = self.first.get(kind, (comparison, 0))
        smaller = min(first, comparison, key=lambda failure: _case_size(failure.case))
        self.first[kind] = smaller, count + 1

    def judged(self) -> int:
        """Return how many cases were run."""
        return self.verdicts.total() - self.verdicts[Verdict.UNSUPPORTED.name]


def judge_stage(asked: Iterable[Case], candidate: Published, pools: Pools) -> Stage:
    """Judge every case on as many ranks as it needs.

    Cases that can show a listed fault are left out after it was seen often enough. A fault that is
    not listed may be behind any case: if it is seen often, the stage ends on this number of ranks.
    """
    stage = Stage()
    by_ranks: dict[int, list[Case]] = {}
    for case in asked:
        by_ranks.setdefault(case.ranks, []).append(case)
        if candidate.supports(case) is None:
            stage.coverage.ask(case)
    for ranks, batch in by_ranks.items():
        _judge_on_ranks(ranks, batch, candidate, pools, stage)
    return stage


def _judge_on_ranks(
    ranks: int, batch: Sequence[Case], candidate: Published, pools: Pools, stage: Stage
) -> None:
    named, faults, seen_often = locate(candidate.name), Counter[Bug | None](), list[Bug]()

    def jobs() -> Iterator[Job]:
        for case in batch:
            bug = next((bug for bug in seen_often if not lacking(case, bug.when)), None)
            # A case that the candidate refuses is counted with the candidate's own reason.
            if bug is None or candidate.supports(case) is not None:
                yield Job(case, named)
            else:
                stage.add(
                    unsupported_comparison(
                        case, named.name, f"{bug.key}, listed: seen often enough"
                    )
                )

    for comparison in pools.of(ranks).judge(jobs()):
        judged = excuse_rounding(mark_known(comparison), pools)
        stage.add(judged)
        if judged.fault is None:
            continue
        bug = listed_bug(judged)
        faults[bug] += 1
        if faults[bug] < (MOST_HANGS if judged.fault.kind is Kind.HUNG else MOST_FAULTS):
            continue
        if bug is None:
            return
        seen_often.append(bug)


def excuse_rounding(comparison: Comparison, pools: Pools) -> Comparison:
    """Return a divergence as UNSUPPORTED if its batch is wrong by rounding at sp 1 too.

    Then nothing that ranks share is to blame. A batch that is wrong at sp 1 by more than rounding
    stays a divergence: that may be a bug of the library.
    """
    if comparison.verdict is not Verdict.DIVERGED or comparison.case.sp == 1:
        return comparison
    alone = Job.again(comparison, replace(comparison.case, sp=1))
    at_sp_1 = pools.of(alone.case.ranks).judge_one(alone)
    if at_sp_1.inquiry.called == "low-precision":
        return unsupported_comparison(comparison.case, comparison.candidate, WRONG_ALONE)
    return comparison


def failure_name(comparison: Comparison) -> str:
    """Return the name of a failure, or its verdict if it has no name."""
    return comparison.inquiry.called or comparison.verdict.name


def broken_properties(comparison: Comparison) -> Iterable[str]:
    """Return the properties that the candidate broke."""
    if comparison.fault:
        return ["no fault"]
    wrong = {result.key for result in comparison.measured.keys if result.wrong}
    is_broken = {
        "loss": "loss" in wrong,
        "losses of tokens": "nll" in wrong,
        "gradients": any(key.startswith(GRADIENT) for key in wrong),
        "every token once": bool(comparison.measured.misfits),
    }
    # A list and not a set: its order is the same in every process.
    return [name for name, broken in is_broken.items() if broken]


def is_unseen_by_loss(comparison: Comparison) -> bool:
    """Whether a comparison of losses alone would have let the case pass."""
    if comparison.measured.loss is None:
        return False
    expected, got = comparison.measured.loss
    return abs(got - expected) <= SEEN_BY_LOSS * abs(expected)


def _case_size(case: Case) -> tuple[int, int]:
    return case.ranks, case.tokens
