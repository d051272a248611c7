"""Closeness as torch.testing.assert_close, torch.allclose and numpy.isclose define it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.case import Dtype
from harness.trace import Entry
from harness.trace.trace import Tokens


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|actual - expected| <= atol + rtol x |expected|, for every element.

    Which of the two is the expected one differs between suites, and is kept as they have it.
    """

    rtol: float
    atol: float

    def numbers(self, actual: npt.ArrayLike, expected: npt.ArrayLike) -> bool:
        """In float64. A NaN is close to nothing, not even to a NaN; an infinity to itself."""
        one, other = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
        return one.shape == other.shape and bool(
            np.isclose(one, other, rtol=self.rtol, atol=self.atol).all()
        )

    def entries(self, actual: Entry, expected: Entry) -> bool:
        """Rows of other tokens are refused, though a suite that gathers rows would not see it."""
        return _same_tokens(actual.tokens, expected.tokens) and self.numbers(
            actual.values, expected.values
        )


# What torch.testing.assert_close takes where no tolerance is given.
DEFAULT: dict[Dtype, Tolerance] = {
    "fp64": Tolerance(rtol=1e-7, atol=1e-7),
    "fp32": Tolerance(rtol=1.3e-6, atol=1e-5),
    "bf16": Tolerance(rtol=1.6e-2, atol=1e-5),
    "fp16": Tolerance(rtol=1e-3, atol=1e-5),
}


def equal_as_float32(one: Entry, other: Entry) -> bool:
    """Equality of two losses that the suite holds in float32, where a NaN equals nothing."""
    return bool(np.float32(one.values) == np.float32(other.values))


def _same_tokens(one: Tokens | None, other: Tokens | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)
