"""The judgement: budgets, elements, the first divergence, and what it looks like."""

from harness.compare.compare import agree, compare, faulted, unsupported
from harness.compare.comparison import Comparison, Divergence, KeyResult
from harness.compare.scale import Scale
from harness.compare.verdict import Verdict

__all__ = [
    "Comparison",
    "Divergence",
    "KeyResult",
    "Scale",
    "Verdict",
    "agree",
    "compare",
    "faulted",
    "unsupported",
]
