"""Compares two traces of equal standing: two references, or two runs of one candidate.

Each function returns the first difference in words, or an empty text.
"""

from collections.abc import Sequence

import numpy as np

from harness.case import Dtype
from harness.compare.budget import CONDITIONING
from harness.compare.elementwise import judge, measure_noise
from harness.trace import Trace
from harness.trace.trace import Entry, Tokens


def agree(one: Trace, other: Trace, *, times: float = 1.0, dtype: Dtype = "fp64") -> str:
    """Return where the traces differ by more than `times` the budget that follows from `one`."""
    difference = structural_difference(one, other)
    if difference:
        return difference
    for key in one:
        # An infinity has an infinite budget, so that everything would be within it.
        if not np.isfinite(one[key].values).all():
            return f"{key}: not finite"
    noise = measure_noise({key: (one[key].values, [one[key].values]) for key in one})
    for key in one:
        values = one[key].values
        judged = judge(key, dtype, values, [values], other[key].values, noise)
        # Written so that a NaN is wrong.
        wrong = np.flatnonzero(~(judged.error <= times * judged.allowed))
        if wrong.size:
            return f"{key}: {wrong.size} of {judged.elements} elements differ"
    return ""


def doubt(oracle: Trace, witness: Trace, dtype: Dtype = "fp64") -> str:
    """Return why two references cannot both be right: they differ by more than rounding may."""
    return agree(oracle, witness, times=CONDITIONING, dtype=dtype)


def equal_but_for_rounding(one: float, other: float, dtype: Dtype) -> bool:
    """Tell whether these may be the loss of two runs of one step on one case.

    Code that is compiled again, and sums in any order, round otherwise in each run.
    """
    traces = Trace(), Trace()
    for trace, loss in zip(traces, (one, other), strict=True):
        trace.put("loss", Entry(np.array(loss)))
    return repr(one) == repr(other) or not agree(*traces, dtype=dtype)


def identical(one: Trace, other: Trace) -> str:
    """Return where the traces are not equal bit by bit; zeros may differ in sign, NaN differs."""
    difference = structural_difference(one, other)
    if difference:
        return difference
    for key in one:
        wrong = np.flatnonzero(one[key].values != other[key].values)
        if wrong.size:
            return f"{key}: {wrong.size} of {one[key].values.size} elements are not identical"
    return ""


def total(traces: Sequence[Trace], share: float) -> Trace:
    """Return `share` times the sum of these traces, for keys without tokens only.

    These are the loss and the gradients.
    """
    total_trace = Trace()
    for key in traces[0]:
        if traces[0][key].tokens is None:
            summed = np.sum([trace[key].values for trace in traces], axis=0)
            total_trace.put(key, Entry(share * summed))
    return total_trace


def structural_difference(one: Trace, other: Trace) -> str:
    """Return why the elements of two traces cannot be compared: keys, tokens or shapes differ."""
    if set(one) != set(other):
        return f"only one of them has {', '.join(sorted(set(one) ^ set(other)))}"
    for key in one:
        if not _have_same_tokens(one[key].tokens, other[key].tokens):
            return f"{key}: rows of different tokens"
        shapes = one[key].values.shape, other[key].values.shape
        if shapes[0] != shapes[1]:
            return f"{key}: shapes {shapes[0]} and {shapes[1]}"
    return ""


def _have_same_tokens(one: Tokens | None, other: Tokens | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)
