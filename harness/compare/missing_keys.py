"""Finds required keys that a candidate did not emit, and describes the likely reason."""

from collections.abc import Sequence
from difflib import get_close_matches
from itertools import islice

import numpy as np

from harness.trace import GRADIENT, METRIC, Fault, Kind, Misfit, MisfitKind, Trace, is_required

# How alike the names of two metrics are if one may be meant for the other.
CLOSE = 0.8


def key_fault(key: str, problem: str) -> Fault:
    """Return the fault of a key that cannot be compared."""
    return Fault(kind=Kind.FRAGMENT, summary=f"key {key!r} {problem}", last_key=key)


def missing_key_fault(oracle: Trace, trace: Trace, *, of_our_model: bool) -> Fault | None:
    """Return the fault of the first required key that the candidate did not emit, or None."""
    key = next((key for key in oracle if is_required(key) and key not in trace), None)
    if key is None:
        return None
    unknown = [emitted for emitted in trace if emitted not in oracle]
    if of_our_model and key.startswith(GRADIENT) and _has_another_model(oracle, trace):
        return _another_model_fault(unknown, key)
    near = "".join(
        f"; near: {match!r}, which is unknown" for match in get_close_matches(key, unknown, 1)
    )
    return key_fault(key, f"was never emitted{near}")


def misspelled_metric_fault(recipe: Trace, trace: Trace) -> Fault | None:
    """Return the fault of a metric that may be meant for one of the recipe's, or None."""
    wanted, returned = _metrics(recipe), _metrics(trace)
    missing = [metric for metric in wanted if metric not in returned]
    for metric in returned:
        if metric not in wanted:
            for match in _meant(metric, missing):
                problem = f"is no metric of the recipe; near: {match!r}, which is not returned"
                return key_fault(f"{METRIC}{metric}", problem)
    return None


def _meant(metric: str, missing: Sequence[str]) -> list[str]:
    longer_or_shorter = (m for m in missing if m.startswith(metric) or metric.startswith(m))
    return get_close_matches(metric, missing, 1, CLOSE) or list(islice(longer_or_shorter, 1))


def _metrics(trace: Trace) -> list[str]:
    return [key.removeprefix(METRIC) for key in trace if key.startswith(METRIC)]


def _has_another_model(oracle: Trace, trace: Trace) -> bool:
    """Return whether most gradients of a trace have names that the oracle does not know."""
    gradients = [key for key in trace if key.startswith(GRADIENT)]
    known = sum(key in oracle for key in gradients)
    return 2 * known < len(gradients)


def _another_model_fault(unknown: Sequence[str], key: str) -> Fault:
    other = next(emitted for emitted in unknown if emitted.startswith(GRADIENT))
    return Fault(
        kind=Kind.REFERENCE,
        summary=(
            f"the step emitted {other}, and plain training of the harness's own model has {key}: "
            "these are gradients of another model; add --against self, and the step is compared "
            "with itself at sp 1"
        ),
    )


def is_lost_in_both(misfit: Misfit, reference: Trace) -> bool:
    """Return whether the tokens lost from an optional key are missing in the reference too."""
    if misfit.kind is not MisfitKind.LOST or is_required(misfit.key):
        return False
    entry = reference.get(misfit.key)
    return entry is None or entry.tokens is None or not np.isin(misfit.tokens, entry.tokens).any()
