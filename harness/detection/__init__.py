"""How much the check finds: every mutant tried, every benign variant, and the score."""

from harness.detection.power import Power, Trier, measure, score
from harness.detection.table import show
from harness.detection.trial import Trial
from harness.detection.watch import Watch

__all__ = ["Power", "Trial", "Trier", "Watch", "measure", "score", "show"]
