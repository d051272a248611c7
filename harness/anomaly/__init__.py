"""What a failure is called: from the first tensor that is wrong, and what follows it."""

from harness.anomaly.names import ANOMALIES, Anomaly

__all__ = ["ANOMALIES", "Anomaly"]
