"""How much the check finds: every mutant tried, every benign variant, and the score."""

from harness.detection.power import Power, measure
from harness.detection.table import show
from harness.detection.watch import Watch

__all__ = ["Power", "Watch", "measure", "show"]
