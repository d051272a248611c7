"""Implementations under test, and the narrow protocol through which all of them are driven."""

from harness.candidates.protocol import STOOD_IN, Candidate, Emit, Rank
from harness.candidates.registry import (
    BUILT_IN,
    Named,
    UnknownCandidate,
    interpreter,
    locate,
)

__all__ = [
    "BUILT_IN",
    "STOOD_IN",
    "Candidate",
    "Emit",
    "Named",
    "Rank",
    "UnknownCandidate",
    "interpreter",
    "locate",
]
