"""A gradient that is wrong by a factor says so: fit g = a * g_ref, per parameter."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from harness.case import Case
from harness.trace.trace import Values

# A fit is clean when what it leaves is small beside what it explains. The gradients compared are
# already known to differ, so this decides how a failure is described, never whether it is one.
CLEAN = {"fp64": 1e-9, "fp32": 1e-4, "bf16": 0.05, "fp16": 0.01}


@dataclass(frozen=True, slots=True)
class Scale:
    """Every gradient is this multiple of the reference."""

    factor: float
    name: str

    def __str__(self) -> str:
        named = f" = {self.name}" if self.name else ""
        return f"every gradient is {self.factor:.6g} of the reference{named}"


def fit_scale(case: Case, pairs: Mapping[str, tuple[Values, Values]]) -> Scale | None:
    """The one factor between expected and got, if there is one for all parameters."""
    clean = CLEAN[case.dtype]
    factors = []
    for expected, got in pairs.values():
        flat_expected, flat_got = (x.astype(np.float64).ravel() for x in (expected, got))
        power = float(flat_expected @ flat_expected)
        if not np.isfinite(flat_got).all() or power == 0.0:
            return None
        factor = float(flat_expected @ flat_got) / power
        left = np.linalg.norm(flat_got - factor * flat_expected)
        if left > clean * max(abs(factor), 1.0) * power**0.5:
            return None
        factors.append(factor)
    if not factors or max(factors) - min(factors) > clean * max(map(abs, factors), default=1.0):
        return None
    factor = float(np.median(factors))
    return Scale(factor, _name(case, factor, clean))


def _name(case: Case, factor: float, clean: float) -> str:
    ranks = case.dp * case.sp
    known = {
        "0, as if never reduced or never reached": 0.0,
        "-1": -1.0,
        "sp": case.sp,
        "1/sp": 1 / case.sp,
        "dp": case.dp,
        "1/dp": 1 / case.dp,
        "dp*sp": ranks,
        "1/(dp*sp)": 1 / ranks,
        "micro-batches": case.micro_batches,
        "1/micro-batches": 1 / case.micro_batches,
    }
    fits = [n for n, v in known.items() if v != 1 and abs(factor - v) <= clean * max(1.0, v)]
    return " = ".join(fits)
