"""How much of its budgets a second computation of plain training uses, below fp64."""

from collections.abc import Sequence

from harness.case import Dtype
from harness.compare.elementwise import judge, measure_noise
from harness.trace import Trace


def worst_budget_use(
    dtype: Dtype, oracle: Trace, baselines: Sequence[Trace], other: Trace
) -> float:
    """Return the largest error of a trace in budgets; infinity if an element is not finite."""
    known = {
        key: (oracle[key].values, tuple(b[key].values for b in baselines if key in b))
        for key in other
    }
    noise = measure_noise({**known}, dtype)
    return max(judge(key, dtype, *known[key], other[key].values, noise).used for key in other)
