"""Changes of the native candidate that must not be flagged."""

from harness.candidates.bank import BENIGN

BANK = BENIGN

__all__ = ["BANK"]
