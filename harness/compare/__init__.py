"""Compares a candidate's trace with the oracle's, and records the outcome.

* The *oracle* is the reference in fp64; a *baseline* is the reference in the case's own dtype.
* A *budget* is how large an error may be, for each tensor and slice.
* A *measurement* says what was compared, how much of it, and what differs.
* An *inquiry* says what was found out about a failure: its names, and how to see it again.
* A *comparison* is the record of the judgement: the verdict, with its measurement and inquiry.
* *Noise* is how far the baselines stray from the oracle; budgets are derived from it.
* *Slack* is the budget of a whole tensor as a share of its size; a tensor with too much is *weak*.
* A *vacuous* run could not have failed, so it is a FAULT and not a pass.

1. No tolerance is tuned by hand. A budget follows from the error that plain training makes in
   the same case, and all factors stand in budget.py with the measurements that they come from.
2. Keys are compared in the order of execution, so that the first divergence is near its cause.
3. A pass needs evidence that the run examined gradients, that ranks shared the sequence, and that
   labels across shard edges were judged.
4. A mismatch is a value and not an exception: a comparison says what differs and by how much.
5. Pictures and kept tensors serve readers of a report. No verdict depends on them.
6. No candidate, rank, process or test framework is known here: only cases and traces.
"""

from harness.compare.agreement import agree, doubt, equal_but_for_rounding, identical, total
from harness.compare.budget import CLOSE, MOST_BUDGETS_OF_DEVICE, ROUNDING_NUDGE
from harness.compare.budget_use import worst_budget_use
from harness.compare.compare import compare, fault_comparison, unsupported_comparison
from harness.compare.comparison import Comparison, Inquiry, Look, RanOn
from harness.compare.differing import Differing
from harness.compare.drift import Change, Drift, drift
from harness.compare.elementwise import alike
from harness.compare.error_elsewhere import with_error_of
from harness.compare.finite_difference import NUDGES, slope_misfit
from harness.compare.measurement import Divergence, KeyResult, Measurement
from harness.compare.scale import Scale
from harness.compare.vacuity import predicting_tokens
from harness.verdict import Verdict

__all__ = [
    "CLOSE",
    "MOST_BUDGETS_OF_DEVICE",
    "NUDGES",
    "ROUNDING_NUDGE",
    "Change",
    "Comparison",
    "Differing",
    "Divergence",
    "Drift",
    "Inquiry",
    "KeyResult",
    "Look",
    "Measurement",
    "RanOn",
    "Scale",
    "Verdict",
    "agree",
    "alike",
    "compare",
    "doubt",
    "drift",
    "equal_but_for_rounding",
    "fault_comparison",
    "identical",
    "predicting_tokens",
    "slope_misfit",
    "total",
    "unsupported_comparison",
    "with_error_of",
    "worst_budget_use",
]
