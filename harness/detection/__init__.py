"""How much the check finds: every mutant tried, every benign variant, and the score."""

from harness.detection.power import Power, measure
from harness.detection.rivalry import contest
from harness.detection.table import show, show_rivalry
from harness.detection.trial import Trial

__all__ = ["Power", "Trial", "contest", "measure", "show", "show_rivalry"]
