"""How much the check finds: every mutant tried, every benign variant, and the score."""

from harness.detection.score import Score, Trier, measure, score
from harness.detection.table import show
from harness.detection.trial import Trial
from harness.detection.watch import Watch

__all__ = ["Score", "Trial", "Trier", "Watch", "measure", "score", "show"]
