"""Fits how much of each term of a loss explains the gradients of a step, or its loss.

Legend: C cases, K the loss and a metric.
"""

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


def losses_by_metric(metric: str, pairs: Sequence[tuple[Trace, Trace]]) -> list[Entry] | None:
    """Return the losses of plain training, each off by as many times what a metric is off by.

    `pairs` are of plain training and of the step. None if a loss or a metric of the step is right,
    or if the metric is all of the loss.
    """
    if any(key not in trace for pair in pairs for trace in pair for key in ("loss", metric)):
        return None
    plain_CK, got_CK = (
        np.array([[float(trace[key].values) for key in ("loss", metric)] for trace in traces])
        for traces in zip(*pairs, strict=True)
    )
    off_CK = got_CK - plain_CK
    # A comparison with NaN is false.
    if not (np.abs(off_CK) > FAINT * np.abs(plain_CK)).all():
        return None
    loss_C, metric_C = off_CK.T
    factor = float(loss_C @ metric_C / (metric_C @ metric_C))
    if np.allclose(plain_CK[:, 0], factor * plain_CK[:, 1], rtol=FAINT, atol=0.0):
        return None
    return [Entry(np.array(loss)) for loss in plain_CK[:, 0] + factor * metric_C]


def _joined(trace: Trace, keys: Sequence[str]) -> Values:
    return np.concatenate([trace[key].values.astype(np.float64).ravel() for key in keys])
