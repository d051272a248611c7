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
    ROUNDING,
    TIMES,
    TIMES_ON_THE_WHOLE,
    UNITS,
    ZERO,
    Exact,
    budget_for,
    kind_of,
    lends_to,
)
from harness.trace.trace import GRADIENT, Values

Floats = npt.NDArray[np.float64]

# Stands in for a budget of zero, so that an error of zero uses nothing of it.
SMALLEST = 1e-60
NOTHING: npt.NDArray[np.intp] = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True)
class Noise:
    """How far plain training in the case's dtype strays from the oracle."""

    # The largest error as a share of each tensor's largest value, by key.
    of: dict[str, float]
    # The median of it over the tensors of one kind.
    usual: dict[str, float]
    # The median of root mean squares of errors, by kind as well.
    usual_on_the_whole: dict[str, float]
    # The largest oracle value over the tensors of one kind.
    largest: dict[str, float]


@dataclass(frozen=True, slots=True)
class Judged:
    """One tensor, judged."""

    elements: int
    # Flat positions of the elements outside their budget, ascending.
    wrong: npt.NDArray[np.intp]
    # The largest error as a share of what was allowed, or the whole tensor's where that is more.
    used: float
    # What the whole tensor may stray as a share of it.
    slack: float
    bitwise: bool
    error: Floats
    # One number for each element, or one for each slice.
    allowed: Floats


def alike(
    one: Values, other: Values, dtype: Dtype, least: float = SMALLEST
) -> npt.NDArray[np.bool_]:
    """Which elements are the same but for rounding; describes a failure, never decides on one.

    Rounding is a share of the largest, or of `least`, where all of them may be nothing else.
    """
    wide, other_wide = one.astype(np.float64), other.astype(np.float64)
    size = max(float(np.abs(wide).max(initial=0.0)), least)
    near: npt.NDArray[np.bool_] = np.abs(wide - other_wide) <= CLEAN[dtype] * size
    return near


def moved(one: Values, other: Values, noise: Noise, key: str) -> tuple[int, float]:
    """How many elements are not the same, and the farthest move as a share of what is drift."""
    size = float(np.abs(one).max(initial=0.0))
    largest = noise.largest.get(kind_of(key, one.ndim), 0.0)
    # A gradient that is zero but for rounding has no size to be measured by.
    allowed = DRIFT * (size if size > ZERO * largest else largest)
    farthest = float(np.abs(other - one).max(initial=0.0)) / max(allowed, SMALLEST)
    unlike = int(np.count_nonzero(one != other))
    return unlike, farthest if farthest == farthest else float("inf")  # noqa: PLR0124


def shares_of_budget(judged: Judged) -> Floats:
    """Divide the error of every element by what it may be; for a reader."""
    shares: Floats = judged.error / np.maximum(judged.allowed, SMALLEST)
    return shares


def lean(oracle: Values, baseline: Values, candidate: Values) -> float:
    """How much larger a tensor is than the baseline's, along the oracle, as a share of that."""
    along = oracle.astype(np.float64, copy=False).ravel()
    off = (candidate.astype(np.float64) - baseline).ravel()
    return float(off @ along / (along @ along))


def is_zero(key: str, oracle: Values, noise: Noise) -> bool:
    """Whether it is zero in exact arithmetic, but for the roundings of larger ones of its kind."""
    magnitude = float(np.abs(oracle).max(initial=0.0))
    return magnitude <= ZERO * noise.largest.get(kind_of(key, oracle.ndim), 0.0)


def measure_noise(known: dict[str, tuple[Values, Sequence[Values]]]) -> Noise:
    """From (oracle, baselines) by key."""
    of: dict[str, float] = {}
    kinds: dict[str, list[tuple[float, float]]] = {}
    largest: dict[str, float] = {}
    for key, (oracle, baselines) in known.items():
        if oracle.dtype.kind != "f" or not oracle.size:
            continue
        magnitude = float(np.abs(oracle).max())
        for kind in lends_to(key, oracle.ndim):
            largest[kind] = max(largest.get(kind, 0.0), magnitude)
        error = max(
            0.0 if baseline is oracle else float(np.abs(baseline - oracle).max())
            for baseline in baselines
        )
        of[key] = error / magnitude if magnitude else 0.0
        # An oracle that is its own baseline tells nothing; a witness may not have every tensor.
        if magnitude and any(baseline is not oracle for baseline in baselines):
            whole = _own_on_the_whole(oracle, baselines) / on_the_whole(oracle)
            for kind in lends_to(key, oracle.ndim):
                kinds.setdefault(kind, []).append((of[key], whole))
    usual = {kind: np.median(values, axis=0).tolist() for kind, values in kinds.items()}
    size, gradient = _size_of_gradients(known), kind_of(GRADIENT, 1)
    # Where others were asked than the oracle, they show what rounding leaves.
    if gradient not in kinds and 0.0 < largest.get(gradient, 0.0) <= ZERO * size:
        largest[gradient] = size
    return Noise(
        of,
        {kind: extreme for kind, (extreme, _) in usual.items()},
        {kind: whole for kind, (_, whole) in usual.items()},
        largest,
    )


def _size_of_gradients(known: dict[str, tuple[Values, Sequence[Values]]]) -> float:
    """What gradients may be as large as where all of them are nothing but rounding.

    Weights are of the order of one, so gradients are of the order of the loss.
    """
    loss = abs(float(known["loss"][0])) if "loss" in known else 0.0
    return loss or 1.0


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
        return Judged(oracle.size, wrong, used, 0.0, not wrong.size, error, np.zeros(oracle.shape))
    expected = oracle.astype(np.float64, copy=False)
    error = np.abs(candidate - expected)
    whole, slack = _allowed_on_the_whole(key, dtype, expected, baselines, noise)
    # One element may always stray as far as all of them.
    allowed = np.maximum(_allowed(key, dtype, expected, baselines, noise), whole)
    used = float((error / np.maximum(allowed, SMALLEST)).max(initial=0.0))
    if used <= 1.0 and whole and (strayed := on_the_whole(error) / whole) > 1.0:
        # No element is out of the ordinary, but all together are: name those that weigh most.
        used, allowed = strayed, np.full_like(allowed, whole)
    # Not `used > 1`: a NaN must be wrong, and so must an infinity against an infinity.
    wrong = NOTHING if used <= 1.0 else np.flatnonzero(~(error <= allowed))
    return Judged(
        elements=oracle.size,
        wrong=wrong,
        used=used if used == used else float("inf"),  # noqa: PLR0124 - NaN is not itself
        slack=slack,
        bitwise=np.array_equal(candidate, baseline),
        error=error,
        allowed=allowed,
    )


def _allowed(
    key: str, dtype: Dtype, oracle: Floats, baselines: Sequence[Values], noise: Noise
) -> Floats:
    """Per slice, shaped to broadcast against the tensor."""
    magnitude = _per_slice(np.abs(oracle))
    kind = kind_of(key, oracle.ndim)
    kind_largest = noise.largest.get(kind, 0.0)
    if magnitude.max(initial=0.0) <= ZERO * kind_largest:
        # As much as kernels leave of the largest, and what plain training's own have left.
        left = max(float(np.abs(baseline - oracle).max(initial=0.0)) for baseline in baselines)
        few = UNITS[dtype] * ROUNDING[dtype] * kind_largest
        return np.full_like(magnitude, few + left)
    if dtype == "fp64" and not noise.usual:
        # Nobody but the oracle was asked: it has no error of its own.
        return FP64_RELATIVE * magnitude + ZERO * kind_largest
    own = np.max([_per_slice(np.abs(baseline - oracle)) for baseline in baselines], axis=0)
    relative = max(noise.of.get(key, 0.0), noise.usual.get(kind, 0.0))
    scale = np.sqrt(magnitude * magnitude.max(initial=0.0))
    allowed: Floats = TIMES[dtype] * np.maximum(own, relative * scale)
    if dtype == "fp64":
        return allowed + FP64_RELATIVE * magnitude + ZERO * kind_largest
    return allowed + UNITS[dtype] * ROUNDING[dtype] * magnitude


def _allowed_on_the_whole(
    key: str, dtype: Dtype, oracle: Floats, baselines: Sequence[Values], noise: Noise
) -> tuple[float, float]:
    """For the root mean square of the error; absolutely, and as a share of the tensor's own."""
    size, kind = on_the_whole(oracle), kind_of(key, oracle.ndim)
    if dtype == "fp64" or size <= ZERO * noise.largest.get(kind, 0.0):
        # There is nothing to be gained over single elements.
        return 0.0, 0.0
    own = max(_own_on_the_whole(oracle, baselines), noise.usual_on_the_whole.get(kind, 0.0) * size)
    allowed = TIMES_ON_THE_WHOLE[dtype] * own + UNITS[dtype] * ROUNDING[dtype] * size
    return allowed, allowed / size


def _own_on_the_whole(oracle: Values, baselines: Sequence[Values]) -> float:
    return max(on_the_whole(baseline - oracle) for baseline in baselines)


def on_the_whole(values: Values) -> float:
    """The root mean square."""
    return float(np.linalg.norm(values) / max(values.size, 1) ** 0.5)


def _per_slice(values: Floats) -> Floats:
    """The largest value of each slice along the first dim; a vector or scalar is one slice."""
    if values.ndim < 2:
        return np.asarray(values.max(initial=0.0))
    largest: Floats = values.max(axis=tuple(range(1, values.ndim)), keepdims=True, initial=0.0)
    return largest
