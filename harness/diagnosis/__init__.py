"""What a failure is called: from the first tensor that is wrong, and from experiments."""

from harness.diagnosis.diagnose import OF_SHARES, diagnose, read
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.inferred import with_what_gradients_tell
from harness.diagnosis.naming import name_divergence, name_fault
from harness.diagnosis.shares import with_shares

__all__ = [
    "OF_SHARES",
    "Evidence",
    "diagnose",
    "name_divergence",
    "name_fault",
    "read",
    "with_shares",
    "with_what_gradients_tell",
]
