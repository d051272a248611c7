"""The acceptance rule of another project's test suite, as data.

A rule is a list of checks; each compares two numbers, or two tensors, within a tolerance.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.case import Case, Dtype
from harness.trace import Trace
from harness.trace.trace import Tokens

Pairs = Iterator[tuple[Any, Any]]
# view(plain, candidate, pattern) -> the pairs to compare, for all keys that match the pattern. It
# raises if the two traces cannot be compared.
View = Callable[[Trace, Trace, str], Pairs]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|actual - expected| <= atol + rtol x |expected|, for every element.

    As torch.testing.assert_close, torch.allclose and numpy.isclose define it.
    """

    rtol: float = 0.0
    atol: float = 0.0

    def holds(self, actual: npt.ArrayLike, expected: npt.ArrayLike) -> bool:
        """Compare in float64. A NaN is close to nothing; an infinity is close to itself."""
        one, other = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
        return one.shape == other.shape and bool(
            np.isclose(one, other, rtol=self.rtol, atol=self.atol).all()
        )


# The default tolerances of torch.testing.assert_close.
DEFAULT: dict[Dtype, Tolerance] = {
    "fp64": Tolerance(rtol=1e-7, atol=1e-7),
    "fp32": Tolerance(rtol=1.3e-6, atol=1e-5),
    "bf16": Tolerance(rtol=1.6e-2, atol=1e-5),
    "fp16": Tolerance(rtol=1e-3, atol=1e-5),
}


def keys(trace: Trace, pattern: str) -> list[str]:
    return [key for key in trace if fnmatchcase(key, pattern)]


def values(trace: Trace, pattern: str) -> Iterator[npt.NDArray[np.float64]]:
    return (trace[key].values.astype(np.float64) for key in keys(trace, pattern))


def elements(plain: Trace, candidate: Trace, pattern: str) -> Pairs:
    """Pair all elements; raise if rows are of different tokens, which some suites cannot see."""
    for key in keys(plain, pattern):
        one, other = plain[key], candidate[key]
        if not _same_tokens(one.tokens, other.tokens):
            raise ValueError(f"{key}: rows of different tokens")
        yield one.values, other.values


def supervised(plain: Trace, candidate: Trace, pattern: str) -> Pairs:
    """Pair the losses of supervised tokens; the candidate may have losses of others as well."""
    tokens = plain[pattern].tokens
    assert tokens is not None
    kept = Trace()
    kept.put(pattern, candidate[pattern].renumbered(tokens, tokens))
    return elements(plain, kept, pattern)


def singles(plain: Trace, candidate: Trace, pattern: str) -> Pairs:
    """Pair two numbers in float32."""
    yield np.float32(plain[pattern].values), np.float32(candidate[pattern].values)


def five_decimals(plain: Trace, candidate: Trace, pattern: str) -> Pairs:
    """Pair two numbers to five decimals, as the suite reads losses from TensorBoard."""
    one, other = (round(float(trace[pattern].values), 5) for trace in (plain, candidate))
    yield one, other


def mean(plain: Trace, candidate: Trace, pattern: str) -> Pairs:
    """Pair the means of a tensor."""
    yield plain[pattern].values.mean(dtype="f8"), candidate[pattern].values.mean(dtype="f8")


def norm(plain: Trace, candidate: Trace, pattern: str) -> Pairs:
    """Pair the norms of all tensors together, as trainers log them before they clip."""
    yield _norm(values(plain, pattern)), _norm(values(candidate, pattern))


def zeros(plain: Trace, candidate: Trace, pattern: str) -> Pairs:
    """Pair the numbers of elements that are zero."""
    one, other = (
        sum(int((x == 0).sum()) for x in values(trace, pattern)) for trace in (plain, candidate)
    )
    yield one, other


def off_by_largest(plain: Trace, candidate: Trace, pattern: str) -> Pairs:
    """Pair 0 with the largest difference, divided by the largest element."""
    for one, other in elements(plain, candidate, pattern):
        largest = max(float(np.abs(one).max()), 1e-9)
        yield 0.0, float(np.abs(_difference(one, other)).max()) / largest


def off_by_norm(plain: Trace, candidate: Trace, pattern: str) -> Pairs:
    """Pair 0 with the norm of the difference, divided by the norm of the candidate's tensor."""
    for one, other in elements(plain, candidate, pattern):
        yield 0.0, _norm([_difference(one, other)]) / (_norm([other]) + 1e-30)


def _same_tokens(one: Tokens | None, other: Tokens | None) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)


def _difference(one: Any, other: Any) -> npt.NDArray[np.float64]:
    if one.shape != other.shape:
        raise ValueError(f"shapes {one.shape} and {other.shape}")
    return np.asarray(one, np.float64) - np.asarray(other, np.float64)


def _norm(tensors: Iterable[Any]) -> float:
    return float(np.sqrt(sum(np.square(x, dtype=np.float64).sum() for x in tensors)))


@dataclass(frozen=True, slots=True)
class Check:
    """A comparison of all tensors whose keys match a pattern."""

    # As for file names: a star stands for anything.
    pattern: str
    # A tolerance for all cases, or a function of the case.
    within: Tolerance | Callable[[Case], Tolerance]
    view: View = elements
    # Whether the tolerance is relative to plain training; in some suites it is to the candidate.
    is_relative_to_plain: bool = False

    def passes(self, case: Case, plain: Trace, candidate: Trace) -> bool:
        within = self.within if isinstance(self.within, Tolerance) else self.within(case)
        return all(
            within.holds(other, one) if self.is_relative_to_plain else within.holds(one, other)
            for one, other in self.view(plain, candidate, self.pattern)
        )


@dataclass(frozen=True, slots=True)
class Rival:
    """A published acceptance rule, with the shapes that its own test runs on.

    If the original leaves a choice, this is the one that makes the suite look better.
    """

    name: str
    # "owner/name: path", as it was public when it was read.
    source: str
    shapes: tuple[Case, ...]
    # All must pass. A rule without checks compares nothing, so that even a NaN passes.
    checks: tuple[Check, ...]
    # What is scaled down, replaced or left out here, and why.
    note: str = field(kw_only=True)

    def accepts(self, case: Case, plain: Trace, candidate: Trace) -> bool:
        """Whether its test would pass, with plain training in the dtype of the case."""
        try:
            return all(check.passes(case, plain, candidate) for check in self.checks)
        except (KeyError, ValueError, IndexError):
            # A tensor is missing or has another shape.
            return False
