"""How much the check finds: every mutant tried, every benign variant, and the score."""

from harness.detection.power import Power, measure
from harness.detection.table import show
from harness.detection.trial import Trial

__all__ = ["Power", "Trial", "measure", "show"]
