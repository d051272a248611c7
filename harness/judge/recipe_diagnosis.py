"""Names a failure of a step with a recipe by what the recipe predicts for known faults.

Each hypothesis of the recipe is plain training with one thing wrong. A rank computes it, because a
recipe is code of a stranger. A hypothesis is the name of the failure if, on every case that goes
wrong, all gradients of the step are what it predicts, or that times one factor. If none fits, it
is tried on each term of the loss alone (`term_diagnosis`). If nothing fits, the module that is
wrong first may have a name.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from harness.compare import Comparison, Look
from harness.judge.job import Job
from harness.judge.term_diagnosis import name_by_term
from harness.judge.wrong_case import WRONG, Predict, Predictor, WrongCase, fit, wrong_cases
from harness.ranks.pool import RankPool

# Models of transformers turn queries and keys by the angles of a module of this name.
ROTARY = "rotary_emb"


def diagnose_by_recipe(
    failure: Comparison, job: Job, pool: RankPool, has_time: Callable[[], bool]
) -> tuple[Look, ...]:
    """Return the name that fits all wrong cases near a failure; empty if none does."""
    wrongs = _enough(wrong_cases(failure, job, pool, has_time))
    look = None
    if len(wrongs) > 1:
        names, predictor = pool.hypotheses(job.recipe), partial(Predictor, job, pool, has_time)
        look = _name_by_loss(wrongs, names, predictor())
        look = look or name_by_term(wrongs, names, predictor())
    look = look or _name_by_module(failure) or _unlike_the_others(failure, wrongs)
    return (look,) if look else ()


def _enough(found: Iterator[WrongCase]) -> list[WrongCase]:
    """Take a few wrong cases; more, if one factor of all gradients explains only some of them."""
    wrongs: list[WrongCase] = []
    for wrong in found:
        wrongs.append(wrong)
        unlike = sum(not each.is_scaled for each in wrongs)
        if len(wrongs) >= WRONG and unlike != 1:
            break
    return wrongs


def _name_by_loss(
    wrongs: Sequence[WrongCase], names: Sequence[str], predict: Predict
) -> Look | None:
    """Return the first hypothesis that fits all wrong cases; None if there is none."""
    for name in names:
        factors = _factors(wrongs, name, predict)
        if factors is None:
            continue
        anomaly, _, how = name.partition(": ")
        scales = sorted(filter(None, factors))
        scaled = f", {' or '.join(scales)}" if scales else ""
        why = f"{how}; this predicts all gradients of {len(wrongs)} cases that go wrong{scaled}"
        return Look(anomaly, why, how=how)
    return None


def _factors(wrongs: Sequence[WrongCase], name: str, predict: Predict) -> set[str] | None:
    """Return by what factors a hypothesis fits the wrong cases; None if it misses one."""
    factors = set()
    for wrong in wrongs:
        prediction = predict(wrong.case, name)
        factor = None if prediction is None else fit(wrong, prediction)
        if factor is None:
            return None
        factors.add(factor)
    return factors


def _unlike_the_others(failure: Comparison, wrongs: Sequence[WrongCase]) -> Look | None:
    """Drop the name of one factor if other cases that go wrong have none."""
    scale = failure.measured.scale
    if scale is None or all(wrong.is_scaled for wrong in wrongs):
        return None
    return Look("unclassified", f"{scale} here, and no factor fits other cases that go wrong")


def _name_by_module(failure: Comparison) -> Look | None:
    """Name a failure by the module that is wrong first, if that is given one thing alone."""
    first = failure.measured.first
    if first is None or ROTARY not in first.key.split("."):
        return None
    how = "angles are wrong that depend on positions alone"
    return Look("positions-wrong", f"{how}: {first.key} is the first that is wrong", how=how)
