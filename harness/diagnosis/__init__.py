"""What a failure is called: from the first tensor that is wrong, and what follows it."""

from harness.diagnosis.names import ANOMALIES
from harness.diagnosis.naming import name_divergence, name_fault

__all__ = ["ANOMALIES", "Anomaly", "name_divergence", "name_fault"]
