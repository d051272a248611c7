"""What a failure is called: from the first tensor that is wrong, and what follows it."""

from harness.anomaly.names import ANOMALIES, Anomaly
from harness.anomaly.naming import name_divergence, name_fault

__all__ = ["ANOMALIES", "Anomaly", "name_divergence", "name_fault"]
