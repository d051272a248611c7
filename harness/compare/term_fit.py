"""Fits how much of each term of a loss explains the gradients of a step."""

from collections.abc import Sequence

import numpy as np

from harness.trace import GRADIENT, Entry, Trace
from harness.trace.trace import Values

# A term whose gradients are this much smaller than those of the loss is not looked for.
FAINT = 1e-12


def fit_terms(plain: Trace, got: Trace, terms: Sequence[Trace]) -> list[float] | None:
    """Return the factors with which these terms, added to plain training, come nearest to it.

    None if the gradients of the terms are too small, too much alike, or of another shape.
    """
    keys = [key for key in plain if key.startswith(GRADIENT)]
    if not keys or any(key not in trace for trace in (got, *terms) for key in keys):
        return None
    expected, given, *added = (_joined(trace, keys) for trace in (plain, got, *terms))
    sizes = [float(np.linalg.norm(each)) for each in added]
    if {len(each) for each in (given, *added)} != {len(expected)}:
        return None
    if not np.isfinite([*sizes, float(np.linalg.norm(given))]).all():
        return None
    if min(sizes) <= FAINT * np.linalg.norm(expected):
        return None
    scaled = np.stack([each / size for each, size in zip(added, sizes, strict=True)], 1)
    fitted, _, rank, _ = np.linalg.lstsq(scaled, given - expected, rcond=FAINT)
    if rank < len(terms):
        return None
    return [float(factor / size) for factor, size in zip(fitted, sizes, strict=True)]


def with_terms(plain: Trace, terms: Sequence[Trace], factors: Sequence[float]) -> Trace:
    """Return plain training with so much of each term added to its loss and its gradients."""
    together = Trace()
    for key in plain:
        if key == "loss" or key.startswith(GRADIENT):
            values = plain[key].values.astype(np.float64)
            for factor, term in zip(factors, terms, strict=True):
                values = values + factor * term[key].values
            together.put(key, Entry(values))
    return together


def _joined(trace: Trace, keys: Sequence[str]) -> Values:
    return np.concatenate([trace[key].values.astype(np.float64).ravel() for key in keys])
