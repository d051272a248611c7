"""The judgement: budgets, elements, the first divergence, and what it looks like."""

from harness.compare.agreement import agree, doubt, identical, total
from harness.compare.compare import compare, faulted, unsupported
from harness.compare.comparison import Comparison, Divergence, KeyResult, Look
from harness.compare.elementwise import alike
from harness.compare.scale import Scale
from harness.compare.slope import NUDGES, slope_misfit
from harness.verdict import Verdict

__all__ = [
    "NUDGES",
    "Comparison",
    "Divergence",
    "KeyResult",
    "Look",
    "Scale",
    "Verdict",
    "agree",
    "alike",
    "compare",
    "doubt",
    "faulted",
    "identical",
    "slope_misfit",
    "total",
    "unsupported",
]
