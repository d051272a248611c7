"""Our own sequence-parallel step: the positive control, and the page to learn Ulysses from."""

from harness.candidates.native.dialects import GatherDialect, LocalDialect
from harness.candidates.native.ulysses import Ulysses

GATHER = GatherDialect()
LOCAL = LocalDialect()

__all__ = ["GATHER", "LOCAL", "GatherDialect", "LocalDialect", "Ulysses"]
