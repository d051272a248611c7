"""Small cases near a failure that the step gets wrong too, and what predictions explain them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from harness.case import Case
from harness.compare import Comparison, Verdict, compare
from harness.diagnosis.experiments import TOKENS, neighbours
from harness.judge.job import Job
from harness.judge.stages import ask_ranks, measure
from harness.ranks.pool import RankPool
from harness.trace import GRADIENT, Assembly, Entry, Trace

# A name has to hold on so many wrong cases, which are among so many that are tried.
WRONG, TRIED = 3, 24
# What a variant of plain training gives on a case; None if the recipe does not take the variant,
# or there is no time left for it.
Predict = Callable[[Case, str], Trace | None]


@dataclass(frozen=True, slots=True)
class WrongCase:
    """A small case that the step gets wrong, and what the step gave."""

    case: Case
    outcome: Assembly
    # Whether its gradients are those of plain training but for one factor.
    is_scaled: bool


def wrong_cases(
    failure: Comparison, job: Job, pool: RankPool, has_time: Callable[[], bool]
) -> Iterator[WrongCase]:
    """Yield small cases in fp64 near a failure of which a gradient is wrong.

    They have one layer, or all if one does not go wrong: a hybrid has layers of other kinds.
    """
    for layers in sorted({1, failure.case.layers}):
        is_wrong = False
        for case in islice(_near(failure, layers), TRIED):
            if not has_time():
                return
            run = ask_ranks(replace(job, case=case), pool)
            comparison, outcome = measure(run), run.outcome()
            if comparison.verdict is Verdict.DIVERGED and _has_wrong_gradient(comparison):
                assert isinstance(outcome, Assembly)
                is_wrong = True
                yield WrongCase(case, outcome, is_scaled=comparison.measured.scale is not None)
        if is_wrong:
            return


def _near(failure: Comparison, layers: int) -> Iterator[Case]:
    case = failure.case
    small = {
        "dtype": "fp64",
        "mixed": False,
        "layers": layers,
        "nudge": 0.0,
        # Plain numbers hide where they come from.
        "columns": "drawn",
        "vocab": max(case.vocab, TOKENS + 1),
    }
    near = (each for each in neighbours(case, small) if each.dp == case.dp)
    for number, each in enumerate(near):
        if number % 3 == 1 and failure.measured.scale is not None:
            # A constant factor cannot be mistaken for one of ranks: one rank has it too.
            yield replace(each, sp=1)
        elif number % 3 == 2:
            # With one micro-batch, a factor of their number cannot be mistaken for one of ranks.
            yield replace(each, micro_batches=1)
        else:
            yield each


def _has_wrong_gradient(comparison: Comparison) -> bool:
    return any(
        result.wrong and result.key.startswith(GRADIENT) for result in comparison.measured.keys
    )


@dataclass(slots=True)
class Predictor:
    """Runs variants of plain training of a job's recipe while there is time."""

    job: Job
    pool: RankPool
    has_time: Callable[[], bool]

    def __call__(self, case: Case, variant: str) -> Trace | None:
        """Return what a variant gives on a case; None if it fails, or there is no time."""
        if not self.has_time():
            return None
        outcome = self.pool.run(case, self.job.recipe, oracle=True, plain=variant)
        if isinstance(outcome, Assembly) and "loss" in outcome.trace:
            return outcome.trace
        return None


def fit(wrong: WrongCase, prediction: Trace) -> str | None:
    """Return the factor of all gradients in words, "" if it is one, or None if they differ.

    A step that only scales right gradients must fit without a factor: any hypothesis that changes
    nothing in this case would fit with one.
    """
    keys = {key for key in prediction if key.startswith(GRADIENT)} | {"loss"}
    comparison = _compared(wrong, prediction.only(keys))
    was_compared = comparison.verdict.passed or comparison.verdict is Verdict.DIVERGED
    if not was_compared or comparison.measured.misfits:
        return None
    if not _has_wrong_gradient(comparison):
        return ""
    scale = comparison.measured.scale
    if scale is None or not scale.factor or wrong.is_scaled:
        return None
    return f"times {scale.factor:.4g}{f' = {scale.name}' if scale.name else ''}"


def fits_loss(wrong: WrongCase, loss: Entry) -> bool:
    """Return whether the loss of a step is this one, whatever its gradients are."""
    trace = wrong.outcome.trace
    prediction = trace.only({key for key in trace if key.startswith(GRADIENT)})
    prediction.put("loss", loss)
    return _compared(wrong, prediction).verdict.passed


def _compared(wrong: WrongCase, prediction: Trace) -> Comparison:
    outcome = replace(wrong.outcome, trace=wrong.outcome.trace.only(set(prediction)))
    compared = wrong.case, "", prediction, [prediction], outcome
    return compare(*compared, of_our_model=False, reference="a hypothesis")
