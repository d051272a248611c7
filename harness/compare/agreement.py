"""Whether two fp64 traces say the same: where they part first, in words, or nothing.

Neither is the truth about the other: two references that must confirm each other, or two runs of
one candidate on cases that must come to the same.
"""

from collections.abc import Sequence

import numpy as np

from harness.case import Dtype
from harness.compare.budget import CONDITIONING
from harness.compare.elementwise import judge, measure_noise
from harness.trace import Trace
from harness.trace.trace import Entry, Tokens


def agree(one: Trace, other: Trace, *, times: float = 1.0, dtype: Dtype = "fp64") -> str:
    """Equal but for rounding: `times` the dtype's budget of every element, as `one` makes it."""
    why = unlike(one, other)
    if why:
        return why
    for key in one:
        # The budget of an infinity is infinite, and everything would be within.
        if not np.isfinite(one[key].values).all():
            return f"{key}: not finite"
    noise = measure_noise({key: (one[key].values, [one[key].values]) for key in one})
    for key in one:
        values = one[key].values
        judged = judge(key, dtype, values, [values], other[key].values, noise)
        # Not `error > ...`: what is not a number must be wrong.
        wrong = np.flatnonzero(~(judged.error <= times * judged.allowed))
        if wrong.size:
            return f"{key}: {wrong.size} of {judged.elements} elements differ"
    return ""


def doubt(oracle: Trace, witness: Trace, dtype: Dtype = "fp64") -> str:
    """Why two references of a dtype cannot both be right."""
    return agree(oracle, witness, times=CONDITIONING, dtype=dtype)


def identical(one: Trace, other: Trace) -> str:
    """Equal in every bit but the sign of a zero; what is not a number is equal to nothing."""
    why = unlike(one, other)
    if why:
        return why
    for key in one:
        wrong = np.flatnonzero(one[key].values != other[key].values)
        if wrong.size:
            return f"{key}: {wrong.size} of {one[key].values.size} elements are not identical"
    return ""


def total(traces: Sequence[Trace], share: float) -> Trace:
    """The sum of a share of each: of what belongs to no token, so of losses and gradients."""
    together = Trace()
    for key in traces[0]:
        if traces[0][key].tokens is None:
            summed = np.sum([trace[key].values for trace in traces], axis=0)
            together.put(key, Entry(share * summed))
    return together


def unlike(one: Trace, other: Trace) -> str:
    """Why their elements cannot even be put side by side."""
    if set(one) != set(other):
        return f"only one of them has {', '.join(sorted(set(one) ^ set(other)))}"
    for key in one:
        if not _same_tokens(one[key].tokens, other[key].tokens):
            return f"{key}: rows of different tokens"
        shapes = one[key].values.shape, other[key].values.shape
        if shapes[0] != shapes[1]:
            return f"{key}: shapes {shapes[0]} and {shapes[1]}"
    return ""


def _same_tokens(one: Tokens | None, other: Tokens | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)
