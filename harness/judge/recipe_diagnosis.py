"""Names a failure of a step with a recipe by what the recipe predicts for known faults.

Each hypothesis of the recipe is plain training with one thing wrong. A rank computes it, because a
recipe is code of a stranger. A hypothesis is the name of the failure if, on every case that goes
wrong, all gradients of the step are what it predicts, or that times one factor. If none fits, it
is tried on each term of the loss alone (`term_diagnosis`).
"""

from collections.abc import Callable
from itertools import islice

from harness.case import Case
from harness.compare import Comparison, Look
from harness.judge.job import Job
from harness.judge.term_diagnosis import name_by_term
from harness.judge.wrong_case import MOST_FAULTS, WRONG, WrongCase, fit, wrong_cases
from harness.ranks.pool import RankPool
from harness.trace import Assembly, Trace


def diagnose_by_recipe(
    failure: Comparison, job: Job, pool: RankPool, has_time: Callable[[], bool]
) -> tuple[Look, ...]:
    """Return the name that fits all wrong cases near a failure; empty if none does."""
    wrongs = list(islice(wrong_cases(failure, job, pool, has_time), WRONG))
    if len(wrongs) < 2:
        return ()
    look = _name_by_loss(wrongs, job, pool) or name_by_term(wrongs, job, pool, has_time)
    return (look,) if look else ()


def _name_by_loss(wrongs: list[WrongCase], job: Job, pool: RankPool) -> Look | None:
    names = list(pool.hypotheses(job.recipe))
    factors: dict[str, set[str]] = {name: set() for name in names}
    for wrong in wrongs:
        predictions = _predictions(names, wrong.case, job, pool)
        fits = {name: fit(wrong, trace) for name, trace in predictions.items()}
        names = [name for name in names if fits.get(name) is not None]
        for name in names:
            factors[name].add(fits[name] or "")
        if not names:
            return None
    anomaly, _, how = names[0].partition(": ")
    scales = sorted(filter(None, factors[names[0]]))
    scaled = f", {' or '.join(scales)}" if scales else ""
    why = f"{how}; this predicts all gradients of {len(wrongs)} cases that go wrong{scaled}"
    return Look(anomaly, why, how=how)


def _predictions(names: list[str], case: Case, job: Job, pool: RankPool) -> dict[str, Trace]:
    """Return what each hypothesis gives on a case; without those that cannot be computed."""
    predictions: dict[str, Trace] = {}
    faults = 0
    for name in names:
        outcome = pool.run(case, job.recipe, oracle=True, plain=name)
        if isinstance(outcome, Assembly):
            predictions[name] = outcome.trace
        else:
            faults += 1
        if faults == MOST_FAULTS:
            break
    return predictions
