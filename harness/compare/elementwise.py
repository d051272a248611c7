"""Judges one tensor: which of its elements are farther from the oracle than their budget."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.case import Dtype
from harness.compare.budget import (
    CLEAN,
    DRIFT,
    FP64_RELATIVE,
    ROUNDING,
    TIMES,
    TIMES_ON_THE_WHOLE,
    UNITS,
    ZERO,
    Exact,
    budget_for,
    kind_of,
    kinds_lent_to,
)
from harness.trace.trace import GRADIENT, Values

Floats = npt.NDArray[np.float64]

LOSSES, GRADIENTS = kind_of("loss", 0), kind_of(GRADIENT, 1)
# Divides instead of a budget of zero, so that an error of zero uses nothing of it.
SMALLEST = 1e-60
NO_POSITIONS: npt.NDArray[np.intp] = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True)
class Noise:
    """How far plain training in the case's dtype strays from the oracle."""

    # By key, the largest error as a share of the tensor's largest value.
    by_key: dict[str, float]
    # By kind, the median of these shares over the tensors of that kind.
    median: dict[str, float]
    # By kind, the median of root mean square errors, as shares of the tensors' own.
    median_rms: dict[str, float]
    # By kind, the largest oracle value over the tensors of that kind.
    largest: dict[str, float]
    # If all gradients are zero in exact arithmetic, though not in fp64: the largest number that a
    # baseline has left in any of them.
    left: float | None


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of judging one tensor."""

    elements: int
    # Flat positions of the elements outside their budget, ascending.
    wrong: npt.NDArray[np.intp]
    # The largest share of its budget that an element, or the tensor as a whole, used.
    used: float
    # How far the tensor as a whole may stray, as a share of its own size.
    slack: float
    # Whether it equals the baseline in every bit.
    bitwise: bool
    error: Floats
    # The budget of each element, or of each slice.
    allowed: Floats


def alike(
    one: Values, other: Values, dtype: Dtype, least: float = SMALLEST
) -> npt.NDArray[np.bool_]:
    """Return which elements are equal but for rounding. Used to describe a failure, not to judge.

    Rounding is a share of the largest value of `one`, or of `least` if that is larger: pass it
    where all values of `one` may be nothing but rounding.
    """
    wide, other_wide = one.astype(np.float64), other.astype(np.float64)
    size = max(float(np.abs(wide).max(initial=0.0)), least)
    near: npt.NDArray[np.bool_] = np.abs(wide - other_wide) <= CLEAN[dtype] * size
    return near


def measure_move(before: Values, now: Values, noise: Noise, key: str) -> tuple[int, float]:
    """Return the number of changed elements, and the farthest move as a share of allowed drift."""
    size = float(np.abs(before).max(initial=0.0))
    largest = noise.largest.get(kind_of(key, before.ndim), 0.0)
    # A gradient that is zero but for rounding is measured by the largest gradient.
    allowed = DRIFT * (size if size > ZERO * largest else largest)
    farthest = float(np.abs(now - before).max(initial=0.0)) / max(allowed, SMALLEST)
    return int(np.count_nonzero(before != now)), _nan_as_infinity(farthest)


def shares_of_budget(judged: Judged) -> Floats:
    """Return the share of its budget that each element used, for pictures."""
    shares: Floats = judged.error / np.maximum(judged.allowed, SMALLEST)
    return shares


def measure_lean(oracle: Values, baseline: Values, candidate: Values) -> float:
    """Return <candidate - baseline, oracle> / <oracle, oracle>: 0.01 if it is 1 % too large."""
    along = oracle.astype(np.float64, copy=False).ravel()
    off = (candidate.astype(np.float64) - baseline).ravel()
    return float(off @ along / (along @ along))


def is_zero(key: str, oracle: Values, noise: Noise) -> bool:
    """Return whether a tensor is nothing but roundings, so that it is zero in exact arithmetic."""
    magnitude = float(np.abs(oracle).max(initial=0.0))
    return magnitude <= ZERO * noise.largest.get(kind_of(key, oracle.ndim), 0.0)


def measure_noise(
    known: dict[str, tuple[Values, Sequence[Values]]], dtype: Dtype = "fp64"
) -> Noise:
    """Return the noise of plain training, from its oracle and its baselines in `dtype` by key."""
    by_key: dict[str, float] = {}
    by_kind: dict[str, list[tuple[float, float]]] = {}
    largest: dict[str, float] = {}
    left: list[float] = []
    for key, (oracle, baselines) in known.items():
        if oracle.dtype.kind != "f" or not oracle.size:
            continue
        magnitude = float(np.abs(oracle).max())
        for kind in kinds_lent_to(key, oracle.ndim):
            largest[kind] = max(largest.get(kind, 0.0), magnitude)
        error = max(
            0.0 if baseline is oracle else float(np.abs(baseline - oracle).max())
            for baseline in baselines
        )
        by_key[key] = error / magnitude if magnitude else 0.0
        if key.startswith(GRADIENT):
            left.append(error)
        # An oracle that is its own baseline has no noise to measure. That is so for some tensors
        # only if another baseline lacks them.
        if magnitude and any(baseline is not oracle for baseline in baselines):
            rms = _baseline_rms(oracle, baselines) / root_mean_square(oracle)
            for kind in kinds_lent_to(key, oracle.ndim):
                by_kind.setdefault(kind, []).append((by_key[key], rms))
    medians = {kind: np.median(values, axis=0).tolist() for kind, values in by_kind.items()}
    # Weights are of the order of one, so gradients are of the order of the loss. If both are zero,
    # but for roundings, they are sums of numbers of the order of one, which cancel.
    loss = abs(float(known["loss"][0])) if "loss" in known else 0.0
    size = max(largest.get(GRADIENTS, 0.0), loss)
    size = size if size > ZERO else 1.0
    has_cancelled = largest.get(GRADIENTS, size) <= ZERO * size
    # If all gradients are roundings of the loss, only its size can say how large roundings are.
    # Baselines other than the oracle show it by their own error, in fp64 if they have any.
    if has_cancelled and dtype == "fp64" and GRADIENTS not in by_kind:
        largest[GRADIENTS] = size
    # A loss may cancel alone, as that of advantages whose mean is zero, and so may its metrics.
    # Where gradients are zero too, as without a target, it may be a little off in fp64 only.
    if largest.get(LOSSES, size) <= ZERO * size and (dtype == "fp64" or not has_cancelled):
        largest |= {k: max(largest.get(k, 0.0), size) for k in kinds_lent_to("loss", 0)}
    return Noise(
        by_key,
        {kind: extreme for kind, (extreme, _) in medians.items()},
        {kind: rms for kind, (_, rms) in medians.items()},
        largest,
        max(left) if has_cancelled else None,
    )


def judge(
    key: str,
    dtype: Dtype,
    oracle: Values,
    baselines: Sequence[Values],
    candidate: Values,
    noise: Noise,
) -> Judged:
    """Compare a tensor element by element and as a whole; the shapes must be equal.

    An `Exact` tensor is compared with the first baseline; any other with the oracle, within a
    budget that follows from the errors of the baselines.
    """
    baseline = baselines[0]
    if isinstance(budget_for(key), Exact) or oracle.dtype.kind != "f":
        error = np.abs(candidate.astype(np.float64) - baseline.astype(np.float64))
        wrong = np.flatnonzero(candidate != baseline)
        used = float("inf") if wrong.size else 0.0
        return Judged(oracle.size, wrong, used, 0.0, not wrong.size, error, np.zeros(oracle.shape))
    expected = oracle.astype(np.float64, copy=False)
    error = np.abs(candidate - expected)
    allowed_rms, slack = _allowed_rms(key, dtype, expected, baselines, noise)
    # Any single element may stray as far as all of them together.
    allowed = np.maximum(_allowed_by_slice(key, dtype, expected, baselines, noise), allowed_rms)
    used = float((error / np.maximum(allowed, SMALLEST)).max(initial=0.0))
    if used <= 1.0 and allowed_rms and (share := root_mean_square(error) / allowed_rms) > 1.0:
        # Every element is within its budget and the whole is not: list the elements above average.
        used, allowed = share, np.full_like(allowed, allowed_rms)
    # The comparisons are written so that a NaN is wrong, also from an infinity minus an infinity.
    wrong = NO_POSITIONS if used <= 1.0 else np.flatnonzero(~(error <= allowed))
    return Judged(
        elements=oracle.size,
        wrong=wrong,
        used=_nan_as_infinity(used),
        slack=slack,
        bitwise=np.array_equal(candidate, baseline),
        error=error,
        allowed=allowed,
    )


def _nan_as_infinity(number: float) -> float:
    return number if number == number else float("inf")  # noqa: PLR0124 - NaN is not itself


def _allowed_by_slice(
    key: str, dtype: Dtype, oracle: Floats, baselines: Sequence[Values], noise: Noise
) -> Floats:
    """Return the budget of each slice, shaped to broadcast against the tensor."""
    magnitude = _largest_by_slice(np.abs(oracle))
    kind = kind_of(key, oracle.ndim)
    kind_largest = noise.largest.get(kind, 0.0)
    if magnitude.max(initial=0.0) <= ZERO * kind_largest:
        # A zero tensor may have a few roundings of the largest one, and what baselines have in it.
        left = max(float(np.abs(baseline - oracle).max(initial=0.0)) for baseline in baselines)
        few = UNITS[dtype] * ROUNDING[dtype] * kind_largest
        return np.full_like(magnitude, few + left)
    if dtype == "fp64" and not noise.median:
        # The only baseline is the oracle, which has no error of its own.
        return FP64_RELATIVE * magnitude + ZERO * kind_largest
    own = np.max([_largest_by_slice(np.abs(baseline - oracle)) for baseline in baselines], axis=0)
    if noise.left is not None and key.startswith(GRADIENT):
        # Where all cancels, a baseline may have nothing left in some slices, or in some tensors.
        own = np.full_like(own, noise.left)
    relative = max(noise.by_key.get(key, 0.0), noise.median.get(kind, 0.0))
    scale = np.sqrt(magnitude * magnitude.max(initial=0.0))
    allowed: Floats = TIMES[dtype] * np.maximum(own, relative * scale)
    if dtype == "fp64":
        return allowed + FP64_RELATIVE * magnitude + ZERO * kind_largest
    return allowed + UNITS[dtype] * ROUNDING[dtype] * magnitude


def _allowed_rms(
    key: str, dtype: Dtype, oracle: Floats, baselines: Sequence[Values], noise: Noise
) -> tuple[float, float]:
    """Return the budget of the error's root mean square, and it as a share of the tensor's own.

    Both are zero for a tensor that is judged by its elements only.
    """
    size, kind = root_mean_square(oracle), kind_of(key, oracle.ndim)
    if dtype == "fp64" or size <= ZERO * noise.largest.get(kind, 0.0):
        # Single elements are judged finely enough.
        return 0.0, 0.0
    own = max(_baseline_rms(oracle, baselines), noise.median_rms.get(kind, 0.0) * size)
    if noise.left is not None and key.startswith(GRADIENT):
        own = max(own, noise.left)
    allowed = TIMES_ON_THE_WHOLE[dtype] * own + UNITS[dtype] * ROUNDING[dtype] * size
    return allowed, allowed / size


def _baseline_rms(oracle: Values, baselines: Sequence[Values]) -> float:
    """Return the largest root mean square error of the baselines."""
    return max(root_mean_square(baseline - oracle) for baseline in baselines)


def root_mean_square(values: Values) -> float:
    """Return the root mean square of all elements; zero if there are none."""
    return float(np.linalg.norm(values) / max(values.size, 1) ** 0.5)


def _largest_by_slice(values: Floats) -> Floats:
    """Return the largest value of each slice along the first dim; a vector is one slice."""
    if values.ndim < 2:
        return np.asarray(values.max(initial=0.0))
    largest: Floats = values.max(axis=tuple(range(1, values.ndim)), keepdims=True, initial=0.0)
    return largest
