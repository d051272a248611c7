"""The stages of a judgement, from a job to a comparison, in the order in which they run.

1. `ask_ranks`       give the ranks the case, and what else they have to run to judge it
2. `ask_references`  compute or collect what the candidate is compared with
3. `measure`         compare, and name what shows in the tensors of this one case
4. `ask_again`       before a candidate is blamed, ask its own step how far it strays itself
5. `look_closer`     run a divergence again, fully traced, to find the first place
6. `hold_to_fp32`    refuse a case in fp64 that the candidate computes in fp32 when alone as well
7. `hold_to_listed`  run it without the bugs that are listed: is anything else wrong?

From stage 4 on, each takes a comparison and returns one. `Session` runs them; `diagnosed` comes
after them, for a failure that is to be named by experiments.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from harness.against import ITSELF, PLAIN, is_kept
from harness.case import Case
from harness.case.stated import spans_all_ranks
from harness.compare import Comparison, Look, Verdict, compare, doubt, faulted, unsupported
from harness.diagnosis import name_divergence, name_fault
from harness.judge import second_opinion, self_reference
from harness.judge.job import Job
from harness.judge.known import without_what_is_listed
from harness.ranks.device import options_for
from harness.ranks.pool import RankPool
from harness.reference import TORCH_DTYPES, reference, with_what_is_given
from harness.trace import Assembly, Fault, Kind, Outcome, Trace, Unsupported, is_required

IN_FP32 = "at sp 1 too it is only as exact as fp32 is: ask for --dtype fp32"


@dataclass(slots=True)
class Run:
    """A job that ranks were given, and what came of it."""

    job: Job
    pool: RankPool
    traced: bool = False
    # Runs of the step at sp 1, if that is the reference.
    alone: tuple[self_reference.Alone, ...] = ()
    # None as long as the ranks have it.
    _outcome: Outcome | None = None
    _alone: tuple[Outcome, ...] = ()

    def outcome(self) -> Outcome:
        """Wait for it; of several runs the oldest has to be asked first."""
        if self._outcome is None:
            self._alone = tuple(self.pool.collect() for _ in self.alone)
            self._outcome = self.pool.collect()
        return self._outcome

    def at_sp_1(self) -> list[Trace] | Fault | Unsupported:
        """What came of the same step at sp 1."""
        outcomes = tuple(map(self._without_others, self.alone, self._alone))
        return self_reference.references(self.job.case, self.alone, outcomes)

    def again_at_sp_1(self, alone: Iterable[self_reference.Alone], *, traced: bool) -> "Run":
        """Keep the outcome, and have the ranks do other runs at sp 1 now."""
        alone = tuple(alone)
        _submit(alone, self.job, self.pool, traced=traced)
        return replace(self, alone=alone, _alone=tuple(self.pool.collect() for _ in alone))

    def _without_others(self, alone: self_reference.Alone, outcome: Outcome) -> Outcome:
        """Ask a step that spans all ranks on a pool that has no more than it needs at sp 1."""
        if isinstance(outcome, Unsupported) and spans_all_ranks(outcome.limits):
            pool = self.pool.beside(alone.case.ranks)
            asked = {"traced": self.traced, "oracle": alone.is_exact, "learns": True}
            return pool.run(alone.case, self.job.candidate, **asked)
        return outcome


def ask_ranks(job: Job, pool: RankPool, *, traced: bool = False) -> Run:
    """Have the ranks run a job; the outcomes of several come in the order they were asked for."""
    reason = pool.placement.refuses(job.case)
    if job.against == ITSELF and job.case.sp == 1:
        reason = "sp 1 is what it is compared with"
    if reason is not None:
        return Run(job, pool, traced, _outcome=Unsupported(reason))
    needs_own = job.against == ITSELF and job.stored is None
    alone = tuple(self_reference.runs_alone(job.case, again=False)) if needs_own else ()
    _submit(alone, job, pool, traced=traced)
    pool.submit(job.case, job.candidate, traced=traced, learns=job.against == ITSELF)
    return Run(job, pool, traced, alone)


def _submit(
    alone: Iterable[self_reference.Alone], job: Job, pool: RankPool, *, traced: bool
) -> None:
    for each in alone:
        pool.submit(each.case, job.candidate, traced=traced, oracle=each.is_exact, learns=True)


# Many candidates may be judged on the same cases.
@lru_cache(maxsize=256)
def reference_traces(case: Case, *, traced: bool = False) -> tuple[Trace, Trace]:
    """The fp64 oracle, and plain training in the case's own dtype."""
    dtypes = (torch.float64, TORCH_DTYPES[case.dtype])[: 1 + (case.dtype != "fp64")]
    traces = [reference(case, dtype, traced=traced) for dtype in dtypes]
    if not traced:
        traces = [with_what_is_given(case, trace) for trace in traces]
    return traces[0], traces[-1]


def ask_references(run: Run) -> Sequence[Trace] | Fault | Unsupported:
    """What the outcome is compared with: the oracle, then baselines; or why there is none."""
    job = run.job
    if job.stored is not None:
        is_own = job.against == ITSELF
        return (job.stored if is_own else with_what_is_given(job.case, job.stored),) * 2
    if job.against == PLAIN:
        # The controller computes it while the ranks work.
        return reference_traces(job.case, traced=run.traced)
    return run.at_sp_1() if isinstance(run.outcome(), Assembly) else ()


def measure(run: Run) -> Comparison:
    """Compare an outcome with its references, and name what shows in its own tensors."""
    pool, job = run.pool, run.job
    options = options_for(pool.placement, pool.size, pool.deadlines.case)
    if job.against != PLAIN:
        options = (*options, "--against", job.against)
    return replace(_measured(run), against=job.against, options=options)


def _measured(run: Run) -> Comparison:
    case, candidate = run.job.case, run.job.candidate.name
    references = ask_references(run)
    outcome = run.outcome()
    if isinstance(references, Fault | Unsupported):
        outcome = references
    if isinstance(outcome, Unsupported):
        return unsupported(case, candidate, outcome.reason, outcome.limits)
    if isinstance(outcome, Fault):
        return replace(_named(faulted(case, candidate, outcome)), logs=outcome.logs)
    assert not isinstance(references, Fault | Unsupported)
    oracle, *baselines = references
    if run.job.against == ITSELF:
        baselines = baselines or [oracle]
        comparison = compare(case, candidate, oracle, baselines, outcome, of_our_model=False)
        comparison = replace(comparison, against=ITSELF)
    else:
        # Before a candidate is blamed, the device that it ran on is asked as well.
        device = run.pool.computes_on
        source = "what is stored" if run.job.stored is not None else "the padded reference"
        given = case, candidate, oracle, baselines[0], outcome, device
        comparison = second_opinion.judged(*given, source=source)
        if run.traced and comparison.verdict is Verdict.DIVERGED and case.dtype == "fp64":
            within = _is_within_fp32(comparison, oracle, outcome)
            comparison = replace(comparison, as_in_fp32=within)
    if comparison.verdict is Verdict.DIVERGED and run.traced:
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


def ask_again(run: Run, seen: Comparison) -> Comparison:
    """Before a candidate is blamed, ask its step at sp 1 again how far it strays itself."""
    if seen.against != ITSELF or seen.verdict is not Verdict.DIVERGED:
        return seen
    if seen.case.dtype == "fp64":
        return _unless_in_fp32(run, seen)
    # The first outcome is judged: a step that is wrong now and then may be right the second time.
    alone = self_reference.runs_alone(run.job.case, again=True)
    again = run.again_at_sp_1(alone, traced=run.traced)
    return replace(measure(again), asked_again=True)


def _unless_in_fp32(run: Run, seen: Comparison) -> Comparison:
    """Blame nobody whose step strays as fp32 does, at sp 1 alone as well."""
    case, stored = run.job.case, run.job.stored
    found = run.at_sp_1() if stored is None else [stored]
    outcome = run.outcome()
    if not isinstance(found, list) or not isinstance(outcome, Assembly) or is_kept(case):
        return seen
    required = list(filter(is_required, found[0]))
    oracle = found[0].only(required)
    mine = self_reference.reference_of(case, outcome.trace).only(required)
    if doubt(oracle, mine, "fp32"):
        return seen
    again = run.again_at_sp_1(self_reference.runs_three_times(case), traced=False).at_sp_1()
    if not isinstance(again, list):
        return seen
    other = again[0].only(required)
    if not doubt(oracle, other) or doubt(oracle, other, "fp32"):
        return seen
    refused = unsupported(seen.case, seen.candidate, IN_FP32)
    return replace(refused, against=seen.against, options=seen.options)


def trace(job: Job, pool: RankPool) -> Comparison:
    """Judge a job on everything that its candidate emits, up to stage 4."""
    run = ask_ranks(job, pool, traced=True)
    comparison = ask_again(run, measure(run))
    if comparison.verdict is not Verdict.DIVERGED:
        return comparison
    comparison = replace(comparison, logs=pool.logs())
    if job.case.steps == 1:
        return comparison
    # After a wrong step everything is wrong: what went wrong shows in the first one.
    first = trace(replace(job, case=replace(job.case, steps=1), stored=None), pool)
    if not first.verdict.passed:
        return comparison.named(*first.seen)
    why = f"the first step alone is right, and after {job.case.steps - 1} more it is not"
    return comparison.named(Look("stale-state", why))


def look_closer(seen: Comparison, pool: RankPool) -> Comparison:
    """Run a divergence again, fully traced."""
    job = Job.again(seen)
    traced = trace(job, pool)
    if traced.verdict is not Verdict.DIVERGED:
        again = f"{traced.verdict.name}: {traced.reason}" if traced.reason else traced.verdict.name
        why = f"seen once; the same case run again with full tracing: {again}"
        return seen.rooted("stale-state", why)
    if repr(traced.loss) == repr(seen.loss):
        return hold_to_fp32(traced, pool)
    # What ran before it was another case the first time, and itself since then.
    settled = repr(trace(job, pool).loss) == repr(traced.loss)
    name, why = (
        ("stale-state", "run again, it comes out differently, and then the same each time")
        if settled
        else ("not-repeatable", "run again and again, it comes out differently each time")
    )
    return traced.rooted(name, why)


def hold_to_fp32(seen: Comparison, pool: RankPool) -> Comparison:
    """Blame nobody for a case in fp64 that computes in fp32, alone as well as among peers."""
    alone = seen
    if seen.as_in_fp32 and seen.case.sp > 1:
        job = Job.again(seen, replace(seen.case, sp=1))
        alone = trace(job, pool)
        if spans_all_ranks(alone.limits):
            alone = trace(job, pool.beside(job.case.ranks))
    return unsupported(seen.case, seen.candidate, IN_FP32) if alone.as_in_fp32 else seen


def hold_to_listed(seen: Comparison, pool: RankPool) -> Comparison:
    """If a listed bug shows, find out whether anything else is wrong without it."""
    candidate = without_what_is_listed(seen) if seen.verdict.failed else None
    if candidate is None:
        return seen
    run = ask_ranks(Job(seen.case, candidate, seen.against), pool)
    mended = ask_again(run, measure(run))
    if mended.verdict is Verdict.DIVERGED:
        mended = look_closer(mended, pool)
    return replace(seen, mended=mended)


def reference_at_sp_1(job: Job, pool: RankPool) -> Trace | Fault | Unsupported:
    """The losses and gradients of a candidate's own step in fp64, with no sequence shared."""
    reason = pool.placement.refuses(job.case)
    if reason is not None:
        return Unsupported(reason)
    exact = replace(job.case, dtype="fp64", mixed=False)
    run = Run(replace(job, against=ITSELF), pool)
    alone = self_reference.runs_alone(exact, again=False)
    found = run.again_at_sp_1(alone, traced=False).at_sp_1()
    if not isinstance(found, list):
        return found
    return found[0].only(list(filter(is_required, found[0])))
