"""The stages of a judgement, from a job to a comparison, in the order in which they run.

1. `ask_ranks`       give the ranks the case, and all further runs that judging it needs
2. `ask_references`  compute or collect the oracle and the baselines
3. `measure`         compare, and name the failure by the tensors of this one case
4. `ask_again`       before a candidate is blamed, find out how far its own reference strays
5. `look_closer`     run a divergence again, fully traced, to find the first wrong tensor
6. `excuse_fp32`     refuse a case in fp64 that the candidate computes in fp32 at sp 1 too
7. `hold_to_listed`  run the candidate without its listed bugs, to see if anything else is wrong

From stage 4 on, each takes a comparison and returns one. `Session` runs the stages. `diagnosed`
may come after them, to name a failure by experiments.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from harness.against import (
    ITSELF,
    PLAIN,
    RECIPE,
    RECIPE_LIMITS,
    is_of_recipe,
    names_recipe,
    needs_own_mesh,
    reference_name,
)
from harness.case import Case
from harness.case.stated import violated_limit
from harness.compare import (
    Comparison,
    Look,
    RanOn,
    Verdict,
    compare,
    doubt,
    equal_but_for_rounding,
    fault_comparison,
    unsupported_comparison,
)
from harness.compare.columns import BatchColumn, columns_of
from harness.compare.missing_keys import key_fault, misspelled_metric_fault
from harness.diagnosis import name_divergence, name_fault
from harness.judge import second_opinion, self_reference
from harness.judge.job import Job
from harness.judge.known import mended_candidate
from harness.judge.recipe_reference import PlainRun, plain_runs, recipe_references
from harness.judge.self_reference import SelfRun
from harness.ranks.pool import RankPool
from harness.reference import TORCH_DTYPES, reference, with_what_is_given
from harness.trace import (
    FROZEN,
    Assembly,
    Fault,
    Kind,
    Outcome,
    Trace,
    Unsupported,
    is_kept,
    is_required,
)
from harness.untrusted import BadInput

ONLY_FP32 = "at sp 1 too it is only as exact as fp32 is: ask for --dtype fp32"


# Runs of the candidate's step at sp 1, or of plain training of its recipe.
OwnRuns = Sequence[SelfRun] | Sequence[PlainRun]


@dataclass(slots=True)
class Run:
    """A job that was given to the ranks, with its outcome once that is collected."""

    job: Job
    pool: RankPool
    traced: bool = False
    # The runs that make the reference, if that is the candidate's own step or its recipe.
    own_runs: OwnRuns = ()
    # None until it is collected.
    _outcome: Outcome | None = None
    _own_outcomes: tuple[Outcome, ...] = ()

    def outcome(self) -> Outcome:
        """Return the outcome; wait for it if needed. Call this on the oldest run first."""
        if self._outcome is None:
            self._own_outcomes = tuple(self.pool.collect() for _ in self.own_runs)
            self._outcome = self.pool.collect()
        return self._outcome

    @property
    def columns(self) -> tuple[BatchColumn, ...]:
        """The columns of the recipe's batch, as plain training had them."""
        plain = self._own_outcomes[0] if self._plain_runs and self._own_outcomes else None
        return columns_of(self.job.case, plain.trace) if isinstance(plain, Assembly) else ()

    def own_references(self) -> list[Trace] | Fault | Unsupported:
        """Return the oracle and baselines of the own runs, or why they give none."""
        case, outcomes = self.job.case, self._own_outcomes
        if is_of_recipe(self.job.against):
            name = reference_name(case, self.job.against)
            return recipe_references(self._plain_runs, outcomes, name)
        runs = [run for run in self.own_runs if isinstance(run, SelfRun)]
        return self_reference.references(case, runs, outcomes)

    @property
    def _plain_runs(self) -> list[PlainRun]:
        return [run for run in self.own_runs if isinstance(run, PlainRun)]

    def with_own_runs(self, own_runs: OwnRuns, *, traced: bool) -> "Run":
        """Do these own runs now, and return a copy with them in place of the earlier ones."""
        _submit_own_runs(own_runs, self.job, self.pool, traced=traced)
        outcomes = tuple(self.pool.collect() for _ in own_runs)
        return replace(self, own_runs=own_runs, _own_outcomes=outcomes)


def ask_ranks(job: Job, pool: RankPool, *, traced: bool = False) -> Run:
    """Give a job to the ranks; outcomes must be collected in the order of these calls."""
    has_recipe = pool.has_recipe(job.candidate)
    if job.against == PLAIN and has_recipe:
        # What is stored of our own plain training is not what the recipe computes.
        job = replace(job, against=RECIPE, stored=None)
    if has_recipe and job.against != RECIPE:
        raise BadInput(
            f"against={job.against}: {job.candidate.name} has a recipe of its own, which is what "
            f"it is compared with; leave --against out"
        )
    reason = pool.placement.refuses(job.case)
    if job.case.columns != "drawn" and not has_recipe and not names_recipe(job.against):
        reason = f"columns={job.case.columns}: it has no recipe, so no column is drawn"
    if job.against == ITSELF and job.case.sp == 1:
        reason = "sp 1 is what it is compared with"
    refusal = Unsupported(reason) if reason else _outside_named_recipe(job, pool)
    if refusal is not None:
        return Run(job, pool, traced, _outcome=refusal)
    runs = _own_runs(job, again=False) if job.stored is None else ()
    _submit_own_runs(runs, job, pool, traced=traced)
    # What computes as a recipe does keeps fp64 where the recipe does.
    exactly = names_recipe(job.against) and job.case.dtype == "fp64"
    learns = job.against == ITSELF
    pool.submit(job.case, job.candidate, traced=traced, learns=learns, exactly=exactly)
    return Run(job, pool, traced, runs)


def _outside_named_recipe(job: Job, pool: RankPool) -> Unsupported | None:
    """Return why the recipe that is named has no plain training of the case; or None."""
    if not names_recipe(job.against):
        return None
    # Ranks load it now, so that a bad name is not taken for a fault of the candidate.
    pool.hypotheses(job.recipe)
    limit = violated_limit(job.case, RECIPE_LIMITS, pool.size)
    return Unsupported(f"the limits of a recipe are {limit}", RECIPE_LIMITS) if limit else None


def _own_runs(job: Job, *, again: bool) -> OwnRuns:
    """Return the runs that make the reference of a job; none if the controller computes it."""
    if is_of_recipe(job.against):
        return tuple(plain_runs(job.case, again=again))
    if job.against == ITSELF:
        return tuple(self_reference.self_runs(job.case, again=again))
    return ()


def _submit_own_runs(own_runs: OwnRuns, job: Job, pool: RankPool, *, traced: bool) -> None:
    for run in own_runs:
        exact = run.is_exact
        if isinstance(run, PlainRun):
            pool.submit(run.case, job.recipe, traced=traced, oracle=exact, plain=run.variant)
        else:
            pool.submit(run.case, job.candidate, traced=traced, oracle=exact, learns=True)


# Cached because many candidates may be judged on the same cases.
@lru_cache(maxsize=256)
def reference_traces(case: Case, *, traced: bool = False) -> tuple[Trace, Trace]:
    """Return the oracle and the baseline of plain training; in fp64 they are the same trace."""
    dtypes = (torch.float64, TORCH_DTYPES[case.dtype])[: 1 + (case.dtype != "fp64")]
    traces = [reference(case, dtype, traced=traced) for dtype in dtypes]
    if not traced:
        traces = [with_what_is_given(case, trace) for trace in traces]
    return traces[0], traces[-1]


def ask_references(run: Run) -> Sequence[Trace] | Fault | Unsupported:
    """Return the oracle, then the baselines of a run; or why there is no reference."""
    job = run.job
    if job.stored is not None:
        is_own = job.against != PLAIN
        return (job.stored if is_own else with_what_is_given(job.case, job.stored),) * 2
    if job.against == PLAIN:
        # This does not wait for the outcome, so the ranks work meanwhile.
        return reference_traces(job.case, traced=run.traced)
    outcome = run.outcome()
    if is_of_recipe(job.against) and isinstance(outcome, Fault):
        # If the recipe fails as well, it is to blame: the step calls the same model.
        references = run.own_references()
        return references if isinstance(references, Fault) else ()
    return run.own_references() if isinstance(outcome, Assembly) else ()


def measure(run: Run) -> Comparison:
    """Compare the outcome with its references, and name a failure by its own tensors."""
    pool = run.pool
    ran_on = RanOn(pool.device, pool.transport, pool.size, pool.deadlines.case)
    comparison = replace(_compared(run), against=run.job.against, ran_on=ran_on)
    return comparison.found_out(columns=run.columns) if comparison.verdict.failed else comparison


def _compared(run: Run) -> Comparison:
    case, candidate = run.job.case, run.job.candidate.name
    references = ask_references(run)
    outcome = run.outcome()
    if isinstance(references, Fault | Unsupported):
        outcome = references
    if isinstance(outcome, Unsupported):
        return unsupported_comparison(case, candidate, outcome.reason, outcome.limits)
    if isinstance(outcome, Fault):
        failure = _with_fault_name(fault_comparison(case, candidate, outcome))
        return failure.found_out(logs=outcome.logs)
    assert not isinstance(references, Fault | Unsupported)
    oracle, *baselines = references
    if run.job.against != PLAIN:
        if names_recipe(run.job.against) and "nll" not in outcome.trace:
            # It shows which rank holds which token.
            return fault_comparison(case, candidate, key_fault("nll", "was never emitted"))
        is_recipe = is_of_recipe(run.job.against)
        if is_recipe:
            if misspelled := misspelled_metric_fault(oracle, outcome.trace):
                return fault_comparison(case, candidate, misspelled)
            # A metric of the recipe is compared if the step returns it.
            named = [k for k in oracle if is_required(k) or k.startswith(FROZEN)]
            oracle = oracle.only([*named, *(k for k in oracle if k in outcome.trace)])
        baselines = baselines or [oracle]
        source = reference_name(case, run.job.against) if is_recipe else "its own step at sp 1"
        compared = case, candidate, oracle, baselines, outcome
        comparison = compare(*compared, of_our_model=False, reference=source)
        comparison = replace(comparison, against=run.job.against)
    else:
        device = run.pool.computes_on
        source = "what is stored" if run.job.stored is not None else "the padded reference"
        arguments = case, candidate, oracle, baselines[0], outcome, device
        comparison = second_opinion.judged(*arguments, source=source)
        if run.traced and comparison.verdict is Verdict.DIVERGED and case.dtype == "fp64":
            as_in_fp32 = _is_within_fp32(comparison, oracle, outcome)
            measured = replace(comparison.measured, as_in_fp32=as_in_fp32)
            comparison = replace(comparison, measured=measured)
    if comparison.verdict is Verdict.DIVERGED and run.traced:
        return comparison.named(*name_divergence(comparison, oracle, outcome.trace))
    return _with_fault_name(comparison)


def _is_within_fp32(failure: Comparison, oracle: Trace, outcome: Assembly) -> bool:
    """Return whether a divergence in fp64 would pass as fp32."""
    # A step that computes in fp32 has errors in most tensors, not just in a few.
    if 2 * sum(1 for key in failure.measured.keys if key.wrong) <= len(failure.measured.keys):
        return False
    single = replace(failure.case, dtype="fp32")
    baseline = reference(single, torch.float32, traced=True)
    return compare(single, failure.candidate, oracle, [baseline], outcome).verdict.passed


def _with_fault_name(comparison: Comparison) -> Comparison:
    """Return the comparison with the name of its fault, if the step can have caused it."""
    fault = comparison.fault
    if fault is None or fault.kind in (Kind.START, Kind.REFERENCE):
        return comparison
    return comparison.named(name_fault(fault))


def ask_again(run: Run, comparison: Comparison) -> Comparison:
    """Before a candidate is blamed, find out how far its own step at sp 1, or recipe, strays."""
    if comparison.against == PLAIN or comparison.verdict is not Verdict.DIVERGED:
        return comparison
    if comparison.against == ITSELF and comparison.case.dtype == "fp64":
        return _excuse_own_fp32(run, comparison)
    # The first outcome is compared again, and not a second one: a step that is wrong now and then
    # may be right the second time.
    more_runs = _own_runs(run.job, again=True)
    return replace(measure(run.with_own_runs(more_runs, traced=run.traced)), asked_again=True)


def _excuse_own_fp32(run: Run, failure: Comparison) -> Comparison:
    """Refuse a case in fp64 if the step strays as fp32 does, and does so at sp 1 too."""
    case, stored = run.job.case, run.job.stored
    references = run.own_references() if stored is None else [stored]
    outcome = run.outcome()
    if (
        not isinstance(references, list)
        or not isinstance(outcome, Assembly)
        or needs_own_mesh(case)
    ):
        return failure
    required = list(filter(is_required, references[0]))
    oracle = references[0].only(required)
    candidate = self_reference.as_reference(case, outcome.trace).only(required)
    if doubt(oracle, candidate, "fp32"):
        return failure
    tripled = self_reference.tripled_self_runs(case)
    references = run.with_own_runs(tripled, traced=False).own_references()
    if not isinstance(references, list):
        return failure
    other_oracle = references[0].only(required)
    if not doubt(oracle, other_oracle) or doubt(oracle, other_oracle, "fp32"):
        return failure
    refused = unsupported_comparison(failure.case, failure.candidate, ONLY_FP32)
    return replace(refused, against=failure.against, ran_on=failure.ran_on)


def trace_job(job: Job, pool: RankPool) -> Comparison:
    """Judge a job on all keys that its candidate emits, up to stage 4."""
    run = ask_ranks(job, pool, traced=True)
    comparison = ask_again(run, measure(run))
    if comparison.verdict is not Verdict.DIVERGED:
        return comparison
    comparison = comparison.found_out(logs=pool.logs())
    if job.case.steps == 1:
        return comparison
    # After one wrong step all tensors of the next are wrong, so the first step gives the name.
    first = trace_job(replace(job, case=replace(job.case, steps=1), stored=None), pool)
    if not first.verdict.passed:
        return comparison.named(*first.inquiry.seen)
    why = f"the first step alone is right, and after {job.case.steps - 1} more it is not"
    return comparison.named(Look("stale-state", why))


def look_closer(failure: Comparison, pool: RankPool) -> Comparison:
    """Run a divergence again, fully traced; name it otherwise if it comes out differently."""
    job = Job.again(failure)
    traced = trace_job(job, pool)
    if traced.verdict is not Verdict.DIVERGED:
        again = f"{traced.verdict.name}: {traced.reason}" if traced.reason else traced.verdict.name
        why = f"seen once; the same case run again with full tracing: {again}"
        return failure.rooted("stale-state", why)
    if _have_same_loss(traced, failure):
        return excuse_fp32(traced, pool)
    # Before the first run the ranks ran another case, and before each later run this same case.
    # So state that a case leaves behind changes the loss once, and then no more.
    name, why = (
        ("stale-state", "run again, it comes out differently, and then the same each time")
        if _have_same_loss(trace_job(job, pool), traced)
        else ("not-repeatable", "run again and again, it comes out differently each time")
    )
    return traced.rooted(name, why)


def _have_same_loss(one: Comparison, other: Comparison) -> bool:
    losses = one.measured.loss, other.measured.loss
    if losses[0] is None or losses[1] is None:
        return losses[0] is losses[1]
    return equal_but_for_rounding(losses[0][1], losses[1][1], one.case.dtype)


def excuse_fp32(failure: Comparison, pool: RankPool) -> Comparison:
    """Refuse a case in fp64 if the candidate computes it as in fp32, and does so at sp 1 too."""
    at_sp_1 = failure
    if failure.measured.as_in_fp32 and failure.case.sp > 1:
        at_sp_1 = trace_job(Job.again(failure, replace(failure.case, sp=1)), pool)
    if not at_sp_1.measured.as_in_fp32:
        return failure
    return unsupported_comparison(failure.case, failure.candidate, ONLY_FP32)


def hold_to_listed(comparison: Comparison, pool: RankPool) -> Comparison:
    """Add what the candidate does without its listed bugs, if such a bug explains a failure."""
    candidate = mended_candidate(comparison) if comparison.verdict.failed else None
    if candidate is None:
        return comparison
    run = ask_ranks(Job(comparison.case, candidate, comparison.against), pool)
    mended = ask_again(run, measure(run))
    if mended.verdict is Verdict.DIVERGED:
        mended = look_closer(mended, pool)
    return comparison.found_out(mended=mended)


def own_reference(job: Job, pool: RankPool) -> Trace | Fault | Unsupported:
    """Return what a golden keeps of a candidate's own oracle in fp64: its recipe, or its step."""
    reason = pool.placement.refuses(job.case)
    refusal = Unsupported(reason) if reason else _outside_named_recipe(job, pool)
    if refusal is not None:
        return refusal
    exact = replace(job, case=replace(job.case, dtype="fp64", mixed=False))
    is_recipe = is_of_recipe(job.against)
    # A recipe must show that it is a function of its batch.
    references = references_now(exact, pool, again=is_recipe)
    if not isinstance(references, list):
        return references
    kept = filter(is_kept if is_recipe else is_required, references[0])
    return references[0].only(list(kept))


def references_now(
    job: Job, pool: RankPool, *, again: bool = False
) -> list[Trace] | Fault | Unsupported:
    """Run the candidate's own oracle and baselines; no other job may be under way."""
    own_runs = _own_runs(job, again=again)
    return Run(job, pool).with_own_runs(own_runs, traced=False).own_references()
