"""From a case to a comparison: the one place where all parts meet."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

import torch

from harness.against import ITSELF, PLAIN, Against, is_kept
from harness.candidates import locate
from harness.case import Case
from harness.case.stated import spans_all_ranks
from harness.compare import Comparison, Look, Verdict, compare, doubt, faulted, unsupported
from harness.diagnosis import name_divergence, name_fault
from harness.judge import blame, own
from harness.judge.known import without_what_is_listed
from harness.ranks.device import options_for
from harness.ranks.pool import RankPool
from harness.reference import TORCH_DTYPES, reference, with_what_is_given
from harness.trace import Assembly, Fault, Kind, Outcome, Trace, Unsupported, is_required

IN_FP32 = "at sp 1 too it is only as exact as fp32 is: ask for --dtype fp32"
# How many cases the ranks may have in hand while the controller computes references.
AHEAD = 4


@dataclass(slots=True)
class Run:
    """A case that a candidate was asked for, and what came of it."""

    case: Case
    candidate: str
    pool: RankPool
    against: Against = PLAIN
    # What it is compared with, where nobody has to compute that.
    stored: Trace | None = None
    # Nothing as long as the ranks have it.
    _outcome: Outcome | None = None
    # The same step at sp 1, where that is the reference, and what came of it.
    alone: tuple[own.Alone, ...] = ()
    _alone: tuple[Outcome, ...] = ()
    traced: bool = False

    def outcome(self) -> Outcome:
        """Wait for it; of several runs the oldest has to be asked first."""
        if self._outcome is None:
            self._alone = tuple(self.pool.collect() for _ in self.alone)
            self._outcome = self.pool.collect()
        return self._outcome

    def references(self) -> list[Trace] | Fault | Unsupported:
        """What came of it at sp 1."""
        outcomes = tuple(map(self._without_others, self.alone, self._alone))
        return own.references(self.case, self.alone, outcomes)

    def _without_others(self, alone: own.Alone, outcome: Outcome) -> Outcome:
        """At sp 1 a step over all ranks is asked where there are no more than it needs."""
        if isinstance(outcome, Unsupported) and spans_all_ranks(outcome.limits):
            ranks = self.pool.beside(alone.case.ranks)
            name, oracle = locate(self.candidate).full, alone.is_exact
            return ranks.run(alone.case, name, traced=self.traced, oracle=oracle, learns=True)
        return outcome


def evaluate(
    case: Case, candidate: str, pool: RankPool, *, against: Against = PLAIN
) -> Comparison:
    """Judge one case; if it diverges, run it again fully traced to find the first place."""
    return next(evaluate_all([(case, candidate)], pool, against=against))


def evaluate_traced(
    case: Case, candidate: str, pool: RankPool, *, against: Against = PLAIN
) -> Comparison:
    """Judge one case on everything that a candidate emits, also where it does not diverge."""
    seen = _traced(case, candidate, pool, against)
    return held_to_mends(_held_to_its_own(seen, pool), pool)


def verdict_only(
    case: Case, candidate: str, pool: RankPool, *, against: Against = PLAIN
) -> Comparison:
    """Judge one case on the required keys alone: what shrinking asks hundreds of times."""
    run = begin(case, candidate, pool, against=against)
    return asked_again(run, judge(run))


def evaluate_all(
    jobs: Iterable[tuple[Case, str]], pool: RankPool, *, against: Against = PLAIN
) -> Iterator[Comparison]:
    """Judge in order. Ranks stay busy while references are computed and judged."""
    coming = iter(jobs)
    under_way: deque[Run] = deque()
    try:
        while True:
            for case, candidate in islice(coming, AHEAD - len(under_way)):
                under_way.append(begin(case, candidate, pool, against=against))
            if not under_way:
                return
            run = under_way.popleft()
            comparison = judge(run)
            if comparison.verdict.failed:
                # What is under way must be in before the ranks can be asked again about this one.
                for later in under_way:
                    later.outcome()
                comparison = asked_again(run, comparison)
                if comparison.verdict is Verdict.DIVERGED:
                    comparison = _closer(comparison, pool)
                comparison = held_to_mends(comparison, pool)
            yield comparison
    except GeneratorExit:
        # Who has seen enough leaves no answers behind for the next one to take for theirs.
        for later in under_way:
            later.outcome()
        raise


# Many candidates may be judged on the same cases.
@lru_cache(maxsize=256)
def reference_traces(case: Case, *, traced: bool = False) -> tuple[Trace, Trace]:
    """The fp64 oracle, and plain training in the case's own dtype."""
    dtypes = (torch.float64, TORCH_DTYPES[case.dtype])[: 1 + (case.dtype != "fp64")]
    traces = [reference(case, dtype, traced=traced) for dtype in dtypes]
    if not traced:
        traces = [with_what_is_given(case, trace) for trace in traces]
    return traces[0], traces[-1]


def begin(
    case: Case,
    candidate: str,
    pool: RankPool,
    *,
    against: Against = PLAIN,
    stored: Trace | None = None,
    traced: bool = False,
) -> Run:
    """Have the ranks run a case; the outcomes of several come in the order they were begun."""
    reason = pool.placement.refuses(case)
    if against == ITSELF and case.sp == 1:
        reason = "sp 1 is what it is compared with"
    if reason is not None:
        return Run(case, candidate, pool, against, _outcome=Unsupported(reason))
    itself = against == ITSELF and stored is None
    alone = tuple(own.runs_alone(case, again=False)) if itself else ()
    _submit(alone, candidate, pool, traced=traced)
    pool.submit(case, locate(candidate).full, traced=traced, learns=against == ITSELF)
    return Run(case, candidate, pool, against, stored, alone=alone, traced=traced)


def at_sp_1(case: Case, candidate: str, pool: RankPool) -> Trace | Fault | Unsupported:
    """The losses and gradients of a candidate's own step in fp64, with no sequence shared."""
    reason = pool.placement.refuses(case)
    if reason is not None:
        return Unsupported(reason)
    alone = tuple(own.runs_alone(replace(case, dtype="fp64", mixed=False), again=False))
    name = locate(candidate).full
    outcomes = tuple(pool.run(each.case, name, oracle=True, learns=True) for each in alone)
    run = Run(case, candidate, pool, ITSELF, alone=alone, _alone=outcomes)
    found = run.references()
    if not isinstance(found, list):
        return found
    return found[0].only(list(filter(is_required, found[0])))


def judge(run: Run, *, traced: bool = False) -> Comparison:
    """Compare an outcome with what it is to be compared with."""
    pool = run.pool
    options = options_for(pool.placement, pool.size, pool.deadlines.case)
    if run.against != PLAIN:
        options = (*options, "--against", run.against)
    seen = _judged(run, traced=traced)
    return replace(seen, against=run.against, options=options)


def _judged(run: Run, *, traced: bool) -> Comparison:
    case, candidate, stored = run.case, run.candidate, run.stored
    itself = run.against == ITSELF
    references: Sequence[Trace] = ()
    if stored is not None:
        references = (stored if itself else with_what_is_given(case, stored),) * 2
    elif not itself:
        # What plain training says comes first, while the ranks work.
        references = reference_traces(case, traced=traced)
    outcome = run.outcome()
    if itself and stored is None and isinstance(outcome, Assembly):
        found = run.references()
        if isinstance(found, list):
            references = found
        else:
            outcome = found
    if isinstance(outcome, Unsupported):
        return unsupported(case, candidate, outcome.reason, outcome.limits)
    if isinstance(outcome, Fault):
        return replace(_named(faulted(case, candidate, outcome)), logs=outcome.logs)
    oracle, *baselines = references
    if itself:
        baselines = baselines or [oracle]
        comparison = compare(case, candidate, oracle, baselines, outcome, of_our_model=False)
        comparison = replace(comparison, against=ITSELF)
    else:
        # Before a candidate is blamed, the device that it ran on is asked as well.
        device = run.pool.computes_on
        source = "what is stored" if stored is not None else "the padded reference"
        told = case, candidate, oracle, baselines[0], outcome, device
        comparison = blame.judged(*told, source=source)
        if traced and comparison.verdict is Verdict.DIVERGED and case.dtype == "fp64":
            within = _is_within_fp32(comparison, oracle, outcome)
            comparison = replace(comparison, as_in_fp32=within)
    if comparison.verdict is Verdict.DIVERGED and traced:
        return comparison.named(*name_divergence(comparison, oracle, outcome.trace))
    return _named(comparison)


def _is_within_fp32(seen: Comparison, oracle: Trace, outcome: Assembly) -> bool:
    # One tensor alone that is a little off is no matter of a format.
    if 2 * sum(1 for key in seen.keys if key.wrong) <= len(seen.keys):
        return False
    single = replace(seen.case, dtype="fp32")
    baseline = reference(single, torch.float32, traced=True)
    return compare(single, seen.candidate, oracle, [baseline], outcome).verdict.passed


def _named(comparison: Comparison) -> Comparison:
    fault = comparison.fault
    # Ranks that never came up look like nothing that a step does, nor does a wrong reference.
    if fault is None or fault.kind in (Kind.START, Kind.REFERENCE):
        return comparison
    return comparison.named(name_fault(fault))


def asked_again(run: Run, seen: Comparison) -> Comparison:
    """Before a candidate is blamed, its step at sp 1 is asked again how far it strays itself."""
    if seen.against != ITSELF or seen.verdict is not Verdict.DIVERGED:
        return seen
    if seen.case.dtype == "fp64":
        return _unless_in_fp32(run, seen)
    alone = tuple(own.runs_alone(run.case, again=True))
    _submit(alone, run.candidate, run.pool, traced=run.traced)
    outcomes = tuple(run.pool.collect() for _ in alone)
    # What came out the first time is judged: a step that is wrong now and then may be right again.
    again = replace(run, alone=alone, _alone=outcomes)
    return replace(judge(again, traced=run.traced), asked_again=True)


def _unless_in_fp32(run: Run, seen: Comparison) -> Comparison:
    """Nobody is blamed whose step strays as fp32 does, at sp 1 alone as well."""
    found = run.references() if run.stored is None else [run.stored]
    outcome = run.outcome()
    if not isinstance(found, list) or not isinstance(outcome, Assembly) or is_kept(run.case):
        return seen
    required = list(filter(is_required, found[0]))
    oracle, mine = found[0].only(required), own.reference_of(run.case, outcome.trace)
    if doubt(oracle, mine.only(required), "fp32"):
        return seen
    alone = tuple(own.runs_three_times(run.case))
    _submit(alone, run.candidate, run.pool, traced=False)
    again = replace(run, alone=alone, _alone=tuple(run.pool.collect() for _ in alone)).references()
    if not isinstance(again, list):
        return seen
    other = again[0].only(required)
    if not doubt(oracle, other) or doubt(oracle, other, "fp32"):
        return seen
    told = unsupported(seen.case, seen.candidate, IN_FP32)
    return replace(told, against=seen.against, options=seen.options)


def _submit(alone: Iterable[own.Alone], candidate: str, pool: RankPool, *, traced: bool) -> None:
    name = locate(candidate).full
    for each in alone:
        pool.submit(each.case, name, traced=traced, oracle=each.is_exact, learns=True)


def _traced(case: Case, candidate: str, pool: RankPool, against: Against) -> Comparison:
    run = begin(case, candidate, pool, against=against, traced=True)
    comparison = asked_again(run, judge(run, traced=True))
    if comparison.verdict is not Verdict.DIVERGED:
        return comparison
    comparison = replace(comparison, logs=pool.logs())
    if case.steps == 1:
        return comparison
    # After a wrong step everything is wrong: what went wrong shows in the first one.
    alone = _traced(replace(case, steps=1), candidate, pool, against)
    if not alone.verdict.passed:
        return comparison.named(*alone.seen)
    why = f"the first step alone is right, and after {case.steps - 1} more it is not"
    return comparison.named(Look("stale-state", why))


def _closer(seen: Comparison, pool: RankPool) -> Comparison:
    """The same case again, fully traced."""
    told = seen.case, seen.candidate, pool, seen.against
    traced = _traced(*told)
    if traced.verdict is not Verdict.DIVERGED:
        again = f"{traced.verdict.name}: {traced.reason}" if traced.reason else traced.verdict.name
        why = f"seen once; the same case run again with full tracing: {again}"
        return seen.rooted("stale-state", why)
    if repr(traced.loss) == repr(seen.loss):
        return _held_to_its_own(traced, pool)
    # What ran before it was another case the first time, and itself since then.
    settled = repr(_traced(*told).loss) == repr(traced.loss)
    name, why = (
        ("stale-state", "run again, it comes out differently, and then the same each time")
        if settled
        else ("not-repeatable", "run again and again, it comes out differently each time")
    )
    return traced.rooted(name, why)


def held_to_mends(seen: Comparison, pool: RankPool) -> Comparison:
    """The same, having asked whether anything else is wrong where a listed bug shows."""
    name = without_what_is_listed(seen) if seen.verdict.failed else ""
    if not name:
        return seen
    run = begin(seen.case, name, pool, against=seen.against)
    mended = asked_again(run, judge(run))
    if mended.verdict is Verdict.DIVERGED:
        mended = _closer(mended, pool)
    return replace(seen, mended=mended)


def _held_to_its_own(seen: Comparison, pool: RankPool) -> Comparison:
    """Nobody is blamed for a fp64 case that computes in fp32, alone as well as among peers."""
    alone = seen
    if seen.as_in_fp32 and seen.case.sp > 1:
        case = replace(seen.case, sp=1)
        alone = _traced(case, seen.candidate, pool, seen.against)
        if spans_all_ranks(alone.limits):
            alone = _traced(case, seen.candidate, pool.beside(case.ranks), seen.against)
    return unsupported(seen.case, seen.candidate, IN_FP32) if alone.as_in_fp32 else seen
