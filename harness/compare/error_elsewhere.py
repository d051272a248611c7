"""The error that plain training makes near a case, brought to the case."""

import numpy as np

from harness.trace import Entry, Trace


def with_error_of(oracle: Trace, exact: Trace, rounded: Trace) -> Trace:
    """Return the oracle with the error of a run elsewhere: what it gave, less its own oracle."""
    moved = Trace()
    for key in oracle:
        if key not in exact or key not in rounded:
            continue
        values, error = oracle[key].values, rounded[key].values.astype(np.float64)
        if values.dtype.kind == "f" and values.shape == error.shape:
            # Infinity, as what a mask hides has, is no error.
            with np.errstate(invalid="ignore"):
                error -= exact[key].values
            values = values + np.where(np.isfinite(error), error, 0.0)
        moved.put(key, Entry(values, oracle[key].tokens))
    return moved
