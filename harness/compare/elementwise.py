"""The only place where tensors are subtracted."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.case import Dtype
from harness.compare.budget import (
    CLEAN,
    DRIFT,
    FP64_RELATIVE,
    LARGEST_SHARE_OF_SIGNAL,
    ROUNDING,
    TIMES,
    UNITS,
    ZERO,
    Exact,
    budget_for,
    kind_of,
)
from harness.trace.trace import Values

Floats = npt.NDArray[np.float64]

# Stands in for a budget of zero, so that an error of zero uses nothing of it.
SMALLEST = 1e-60
NOTHING: npt.NDArray[np.intp] = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True)
class Noise:
    """How far plain training in the case's dtype strays from the oracle."""

    # Relative to each tensor's largest value, by key.
    of: dict[str, float]
    # The median over the tensors of one kind.
    usual: dict[str, float]
    # The largest oracle value over the tensors of one kind.
    largest: dict[str, float]


@dataclass(frozen=True, slots=True)
class Judged:
    """One tensor, judged."""

    elements: int
    # Flat positions of the elements outside their budget, ascending.
    wrong: npt.NDArray[np.intp]
    # The largest error as a share of what was allowed.
    used: float
    # The budget is too large a share of the tensor to say anything.
    weak: bool
    bitwise: bool
    error: Floats
    # Of the same shape, or one for each slice.
    allowed: Floats


def alike(one: Values, other: Values, dtype: Dtype) -> npt.NDArray[np.bool_]:
    """Which elements are the same but for rounding; describes a failure, never decides on one."""
    wide, other_wide = one.astype(np.float64), other.astype(np.float64)
    size = max(float(np.abs(wide).max(initial=0.0)), SMALLEST)
    near: npt.NDArray[np.bool_] = np.abs(wide - other_wide) <= CLEAN[dtype] * size
    return near


def moved(one: Values, other: Values, noise: Noise, key: str) -> tuple[int, float]:
    """How many elements are not the same, and the farthest move as a share of what is drift."""
    size = float(np.abs(one).max(initial=0.0))
    largest = noise.largest.get(kind_of(key), 0.0)
    # A gradient that is zero but for rounding has no size to be measured by.
    allowed = DRIFT * (size if size > ZERO * largest else largest)
    farthest = float(np.abs(other - one).max(initial=0.0)) / max(allowed, SMALLEST)
    unlike = int(np.count_nonzero(one != other))
    return unlike, farthest if farthest == farthest else float("inf")  # noqa: PLR0124


def measure_noise(known: dict[str, tuple[Values, Sequence[Values]]]) -> Noise:
    """From (oracle, baselines) by key."""
    of: dict[str, float] = {}
    kinds: dict[str, list[float]] = {}
    largest: dict[str, float] = {}
    for key, (oracle, baselines) in known.items():
        if oracle.dtype.kind != "f" or not oracle.size:
            continue
        kind, magnitude = kind_of(key), float(np.abs(oracle).max())
        largest[kind] = max(largest.get(kind, 0.0), magnitude)
        error = max(
            0.0 if baseline is oracle else float(np.abs(baseline - oracle).max())
            for baseline in baselines
        )
        of[key] = error / magnitude if magnitude else 0.0
        # An oracle that is its own baseline tells nothing; a witness may not have every tensor.
        if magnitude and any(baseline is not oracle for baseline in baselines):
            kinds.setdefault(kind, []).append(of[key])
    usual = {kind: float(np.median(values)) for kind, values in kinds.items()}
    return Noise(of, usual, largest)


def judge(
    key: str,
    dtype: Dtype,
    oracle: Values,
    baselines: Sequence[Values],
    candidate: Values,
    noise: Noise,
) -> Judged:
    """Compare element by element; shapes must agree already."""
    baseline = baselines[0]
    if isinstance(budget_for(key), Exact) or oracle.dtype.kind != "f":
        error = np.abs(candidate.astype(np.float64) - baseline.astype(np.float64))
        wrong = np.flatnonzero(candidate != baseline)
        used = float("inf") if wrong.size else 0.0
        return Judged(
            oracle.size, wrong, used, False, not wrong.size, error, np.zeros(oracle.shape)
        )
    expected = oracle.astype(np.float64, copy=False)
    error = np.abs(candidate - expected)
    allowed = _allowed(key, dtype, expected, baselines, noise)
    share = float((error / np.maximum(allowed, SMALLEST)).max(initial=0.0))
    # Not `share > 1`: a NaN must be wrong, and so must an infinity against an infinity.
    wrong = NOTHING if share <= 1.0 else np.flatnonzero(~(error <= allowed))
    largest = float(np.abs(expected).max(initial=0.0))
    kind_largest = noise.largest.get(kind_of(key), 0.0)
    return Judged(
        elements=oracle.size,
        wrong=wrong,
        used=share if share == share else float("inf"),  # noqa: PLR0124 - NaN is not itself
        weak=largest > ZERO * kind_largest
        and float(allowed.max(initial=0.0)) > LARGEST_SHARE_OF_SIGNAL * largest,
        bitwise=np.array_equal(candidate, baseline),
        error=error,
        allowed=allowed,
    )


def _allowed(
    key: str, dtype: Dtype, oracle: Floats, baselines: Sequence[Values], noise: Noise
) -> Floats:
    """Per slice, shaped to broadcast against the tensor."""
    magnitude = _per_slice(np.abs(oracle))
    kind_largest = noise.largest.get(kind_of(key), 0.0)
    if magnitude.max(initial=0.0) <= ZERO * kind_largest:
        return np.full_like(magnitude, UNITS[dtype] * ROUNDING[dtype] * kind_largest)
    if dtype == "fp64" and not noise.usual:
        # Nobody but the oracle was asked: it has no error of its own.
        return FP64_RELATIVE * magnitude + ZERO * kind_largest
    own = np.max([_per_slice(np.abs(baseline - oracle)) for baseline in baselines], axis=0)
    relative = max(noise.of.get(key, 0.0), noise.usual.get(kind_of(key), 0.0))
    scale = np.sqrt(magnitude * magnitude.max(initial=0.0))
    allowed: Floats = TIMES[dtype] * np.maximum(own, relative * scale)
    if dtype == "fp64":
        return allowed + FP64_RELATIVE * magnitude + ZERO * kind_largest
    return allowed + UNITS[dtype] * ROUNDING[dtype] * magnitude


def _per_slice(values: Floats) -> Floats:
    """The largest value of each slice along the first dim; a vector or scalar is one slice."""
    if values.ndim < 2:
        return np.asarray(values.max(initial=0.0))
    largest: Floats = values.max(axis=tuple(range(1, values.ndim)), keepdims=True, initial=0.0)
    return largest
