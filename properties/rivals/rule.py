"""What another project's suite asks of a sequence-parallel step, as data.

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
# What is compared of these keys of plain training and of a candidate. It raises if they cannot be
# put side by side.
View = Callable[[Trace, Trace, str], Pairs]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|actual - expected| <= atol + rtol x |expected|, for every element.

    As torch.testing.assert_close, torch.allclose and numpy.isclose define it.
    """

    rtol: float = 0.0
    atol: float = 0.0

    def holds(self, actual: npt.ArrayLike, expected: npt.ArrayLike) -> bool:
        """In float64. A NaN is close to nothing, not even to a NaN; an infinity to itself."""
        one, other = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
        return one.shape == other.shape and bool(
            np.isclose(one, other, rtol=self.rtol, atol=self.atol).all()
        )


# What torch.testing.assert_close takes where no tolerance is given.
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
    """Rows of other tokens are refused, though a suite that gathers rows would not see it."""
    for key in keys(plain, pattern):
        one, other = plain[key], candidate[key]
        if not _same(one.tokens, other.tokens):
            raise ValueError(f"{key}: rows of different tokens")
        yield one.values, other.values


def supervised(plain: Trace, candidate: Trace, pattern: str) -> Pairs:
    """A candidate may have one for every token, where plain training has those that count."""
    tokens = plain[pattern].tokens
    assert tokens is not None
    kept = Trace()
    kept.put(pattern, candidate[pattern].renumbered(tokens, tokens))
    return elements(plain, kept, pattern)


def singles(plain: Trace, candidate: Trace, pattern: str) -> Pairs:
    """Numbers that the suite holds in float32."""
    yield np.float32(plain[pattern].values), np.float32(candidate[pattern].values)


def five_decimals(plain: Trace, candidate: Trace, pattern: str) -> Pairs:
    """As losses are read from TensorBoard there."""
    one, other = (round(float(trace[pattern].values), 5) for trace in (plain, candidate))
    yield one, other


def mean(plain: Trace, candidate: Trace, pattern: str) -> Pairs:
    yield plain[pattern].values.mean(dtype="f8"), candidate[pattern].values.mean(dtype="f8")


def norm(plain: Trace, candidate: Trace, pattern: str) -> Pairs:
    """Of everything together, as trainers log it before they clip."""
    yield _norm(values(plain, pattern)), _norm(values(candidate, pattern))


def zeros(plain: Trace, candidate: Trace, pattern: str) -> Pairs:
    """How many elements are zero."""
    one, other = (
        sum(int((x == 0).sum()) for x in values(trace, pattern)) for trace in (plain, candidate)
    )
    yield one, other


def off_by_largest(plain: Trace, candidate: Trace, pattern: str) -> Pairs:
    """The largest difference over the largest element."""
    for one, other in elements(plain, candidate, pattern):
        largest = max(float(np.abs(one).max()), 1e-9)
        yield 0.0, float(np.abs(_difference(one, other)).max()) / largest


def off_by_norm(plain: Trace, candidate: Trace, pattern: str) -> Pairs:
    """The norm of the difference over the norm of the candidate's, which comes second there."""
    for one, other in elements(plain, candidate, pattern):
        yield 0.0, _norm([_difference(one, other)]) / (_norm([other]) + 1e-30)


def _same(one: Tokens | None, other: Tokens | None) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)


def _difference(one: Any, other: Any) -> npt.NDArray[np.float64]:
    if one.shape != other.shape:
        raise ValueError(f"shapes {one.shape} and {other.shape}")
    return np.asarray(one, np.float64) - np.asarray(other, np.float64)


def _norm(tensors: Iterable[Any]) -> float:
    return float(np.sqrt(sum(np.square(x, dtype=np.float64).sum() for x in tensors)))


@dataclass(frozen=True, slots=True)
class Check:
    """A comparison of what has these keys."""

    # As for a file name: a star stands for anything.
    pattern: str
    # One for all cases, or what it is for a case.
    within: Tolerance | Callable[[Case], Tolerance]
    view: View = elements
    # Which of the two is the expected one differs between suites, and is kept as they have it.
    of_plain: bool = False

    def passes(self, case: Case, plain: Trace, candidate: Trace) -> bool:
        within = self.within if isinstance(self.within, Tolerance) else self.within(case)
        return all(
            within.holds(other, one) if self.of_plain else within.holds(one, other)
            for one, other in self.view(plain, candidate, self.pattern)
        )


@dataclass(frozen=True, slots=True)
class Rival:
    """A published acceptance rule, with the shapes that its own test runs on.

    Where the original leaves a choice, it is the one that makes the suite look better.
    """

    name: str
    # "owner/name: path", as public on the day when it was read.
    source: str
    shapes: tuple[Case, ...]
    # All must pass; without any it compares nothing, and a NaN passes as well.
    checks: tuple[Check, ...]
    # What is scaled down, replaced or left out, and why.
    note: str = field(kw_only=True)

    def accepts(self, case: Case, plain: Trace, candidate: Trace) -> bool:
        """Whether its test would have passed; plain training is in the case's dtype."""
        try:
            return all(check.passes(case, plain, candidate) for check in self.checks)
        except (KeyError, ValueError, IndexError):
            # A tensor of another shape, or none at all, stops any comparison.
            return False
