"""Implementations under test, and the narrow protocol through which all of them are driven."""

from harness.candidates.protocol import STOOD_IN, Candidate, Emit, Rank
from harness.candidates.registry import Named, interpreter, locate

__all__ = [
    "STOOD_IN",
    "Candidate",
    "Emit",
    "Named",
    "Rank",
    "interpreter",
    "locate",
]
