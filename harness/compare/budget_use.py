"""How far another computation of the same strays, in a dtype that rounds."""

from collections.abc import Sequence

from harness.case import Dtype
from harness.compare.elementwise import judge, measure_noise
from harness.trace import Trace


def strain(dtype: Dtype, oracle: Trace, baselines: Sequence[Trace], other: Trace) -> float:
    """By so many budgets, at its worst; infinite where it is not finite."""
    known = {
        key: (oracle[key].values, tuple(each[key].values for each in baselines if key in each))
        for key in other
    }
    noise = measure_noise({**known})
    return max(judge(key, dtype, *known[key], other[key].values, noise).used for key in other)
