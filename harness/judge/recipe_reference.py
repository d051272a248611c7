"""Plain training of a recipe, the candidate's own or a named one, as the reference of a step.

A rank runs it, because a recipe is code of a stranger, as the step is. Before a step is blamed,
the recipe runs again, with rows padded further and in another order. If its loss depends on
either, or on earlier runs, the recipe is no reference. In a dtype that rounds, the same runs show
how much of an error is rounding. All of them may be exact by luck: a KL of a thousandth that is
computed as a difference of ones has few values in fp32. So the recipe also runs from weights that
are moved farther, where its error is the distance from its own run in fp64. A step may use fused
attention whatever the case asks for. In fp32 that errs by more than the formula, most of all in
rows with padding, so there the recipe also runs with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.case import Case
from harness.compare import ROUNDING_NUDGE, doubt, with_error_of
from harness.trace import COLUMN, GRADIENT, Assembly, Fault, Kind, Outcome, Trace, Unsupported

USUAL = "plain"
# Changes that must not affect the loss of a recipe, in words.
CHANGES = {
    USUAL: "it is run once more",
    "wider": "rows are padded further",
    "reversed": "rows stand in another order",
}
# By how many roundings weights are moved to see other errors of the recipe: enough for each number
# to round otherwise, and too few to make it another one.
FARTHER = (-16, 16)


@dataclass(frozen=True, slots=True)
class PlainRun:
    """One run of the recipe on one rank."""

    case: Case
    variant: str = USUAL
    # Whether it computes in fp64 throughout.
    is_exact: bool = False
    # Whether its weights are so far from the case's that only its error is of use.
    is_elsewhere: bool = False


def plain_runs(case: Case, *, again: bool) -> list[PlainRun]:
    """Return the runs of the oracle and of the baselines; with `again`, more of both."""
    variants = tuple(CHANGES) if again else (USUAL,)
    runs = [PlainRun(case, variant, is_exact=True) for variant in variants]
    if again:
        runs.append(PlainRun(case, is_exact=True))
    if case.dtype != "fp64":
        runs += [PlainRun(case, variant) for variant in variants]
    if again:
        # A router may choose other experts if its input is a rounding away, and a loss may be
        # small because large numbers cancel. Weights move both ways, because one way often rounds
        # to the same numbers.
        is_exact = case.dtype == "fp64"
        runs += [PlainRun(moved, is_exact=is_exact) for moved in _moved(case, (-2, -1, 1, 2))]
    if again and case.dtype == "fp32":
        fused = replace(case, kernel="sdpa")
        runs += [PlainRun(moved, "wider") for moved in _moved(fused, (-1, 1))]
    if again and case.dtype != "fp64":
        runs += [
            PlainRun(moved, is_exact=is_exact, is_elsewhere=True)
            for moved in _moved(case, FARTHER)
            for is_exact in (True, False)
        ]
    return runs


def _moved(case: Case, roundings: Sequence[int]) -> list[Case]:
    """Return the case from weights that are moved by each of so many roundings."""
    nudges = (case.nudge + times * ROUNDING_NUDGE[case.dtype] for times in roundings)
    return [replace(case, nudge=nudge) for nudge in nudges if abs(nudge) <= 1]


def recipe_references(
    runs: Sequence[PlainRun], outcomes: Sequence[Outcome], name: str
) -> list[Trace] | Fault | Unsupported:
    """Return the oracle and all baselines, or why there are none; `name` is for the latter."""
    traces: list[Trace] = []
    for outcome in outcomes:
        if isinstance(outcome, Fault):
            return replace(outcome, summary=f"{name}: {outcome.summary}")
        assert isinstance(outcome, Assembly), "plain training has no limits"
        traces.append(_in_order(outcome.trace))
    oracle, *others = traces
    baselines = []
    exact_elsewhere = Trace()
    for run, trace in zip(runs[1:], others, strict=True):
        if run.is_elsewhere:
            if run.is_exact:
                exact_elsewhere = trace
            else:
                baselines.append(with_error_of(oracle, exact_elsewhere, trace))
            continue
        one, other = _with_modules_of(oracle, trace), _with_modules_of(trace, oracle)
        why = doubt(one, other) if run.is_exact else ""
        if why:
            is_moved = run.case.nudge != runs[0].case.nudge
            change = "weights move by a rounding" if is_moved else CHANGES[run.variant]
            summary = f"{name} comes out otherwise when {change}: {why}"
            return Fault(kind=Kind.REFERENCE, summary=summary)
        if not run.is_exact or run.case.dtype == "fp64":
            baselines.append(trace)
    return [oracle, *baselines]


def _with_modules_of(trace: Trace, other: Trace) -> Trace:
    """Return a trace without modules that the other lacks.

    Of a batch of one token, a module's output may by its shape be anything.
    """
    return trace.only([key for key in trace if trace[key].tokens is None or key in other])


def _in_order(trace: Trace) -> Trace:
    """Return the trace in order: modules, loss, gradients as backward reaches them, metrics.

    Columns are left out: they are given, and nothing is compared with them.
    """
    keys = [key for key in trace if not key.startswith(COLUMN)]
    gradients = [key for key in keys if key.startswith(GRADIENT)]
    inside = [key for key in keys if trace[key].tokens is not None]
    others = [key for key in keys if key not in {*gradients, *inside, "loss"}]
    ordered = Trace()
    for key in (*inside, "loss", *reversed(gradients), *others):
        ordered.put(key, trace[key])
    return ordered
