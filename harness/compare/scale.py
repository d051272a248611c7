"""Finds the factor by which all gradients are wrong: fits g = a * g_ref for each parameter."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from harness.case import Case
from harness.compare.budget import CLEAN
from harness.trace.trace import Values


@dataclass(frozen=True, slots=True)
class Scale:
    """The factor between every gradient and the reference, and the sizes that are equal to it."""

    factor: float
    name: str

    def __str__(self) -> str:
        named = f" = {self.name}" if self.name else ""
        return f"every gradient is {self.factor:.6g} of the reference{named}"


def fit_scale(case: Case, pairs: Mapping[str, tuple[Values, Values]]) -> Scale | None:
    """Return the factor between (expected, got) of all keys; None if it is 1, or there is none."""
    clean = CLEAN[case.dtype]
    strongest = max((_power(expected) for expected, _ in pairs.values()), default=0.0)
    factors = []
    for expected, got in pairs.values():
        flat_expected, flat_got = (x.astype(np.float64).ravel() for x in (expected, got))
        power = _power(expected)
        if not np.isfinite(flat_got).all():
            return None
        if power <= clean * clean * strongest:
            # A gradient that is zero in exact arithmetic has no factor, as long as it stays small.
            if float(flat_got @ flat_got) > clean * clean * strongest:
                return None
            continue
        factor = float(flat_expected @ flat_got) / power
        residual = np.linalg.norm(flat_got - factor * flat_expected)
        if residual > clean * max(abs(factor), 1.0) * power**0.5:
            return None
        factors.append(factor)
    if not factors or max(factors) - min(factors) > clean * max(map(abs, factors), default=1.0):
        return None
    factor = float(np.median(factors))
    if abs(factor - 1.0) <= clean:
        return None
    return Scale(factor, _name_factor(case, factor, clean))


def _power(values: Values) -> float:
    flat = values.astype(np.float64).ravel()
    return float(flat @ flat)


def _name_factor(case: Case, factor: float, clean: float) -> str:
    """Return the sizes of the case that equal the factor, such as `1/sp`; "" if none does."""
    sizes = {"sp": case.sp, "dp": case.dp, "micro-batches": case.micro_batches}
    if case.sp > 1 and case.dp > 1:
        sizes["(dp*sp)"] = case.dp * case.sp
    known = {"0: never reached, or never reduced": 0.0, "-1": -1.0}
    for name, size in sizes.items():
        if size > 1:
            known |= {name: float(size), f"1/{name}": 1 / size}
    return " = ".join(n for n, v in known.items() if abs(factor - v) <= clean * max(1.0, v))
