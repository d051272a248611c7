"""The judgement: budgets, elements, the first divergence, and what it looks like."""

from harness.compare.agreement import agree, doubt, identical, total
from harness.compare.budget import A_ROUNDING_AWAY, STRAIN
from harness.compare.budget_use import strain
from harness.compare.compare import compare, faulted, unsupported
from harness.compare.comparison import Comparison, Divergence, KeyResult, Look
from harness.compare.differing import Differing
from harness.compare.drift import Change, Drift, drift
from harness.compare.elementwise import alike
from harness.compare.finite_difference import NUDGES, slope_misfit
from harness.compare.scale import Scale
from harness.compare.vacuity import predicting
from harness.verdict import Verdict

__all__ = [
    "A_ROUNDING_AWAY",
    "NUDGES",
    "STRAIN",
    "Change",
    "Comparison",
    "Differing",
    "Divergence",
    "Drift",
    "KeyResult",
    "Look",
    "Scale",
    "Verdict",
    "agree",
    "alike",
    "compare",
    "doubt",
    "drift",
    "faulted",
    "identical",
    "predicting",
    "slope_misfit",
    "strain",
    "total",
    "unsupported",
]
