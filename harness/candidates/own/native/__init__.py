"""Our own sequence-parallel step: the positive control, and the page to learn Ulysses from."""

from harness.candidates.own.native.dialects import GatherDialect, LocalDialect
from harness.candidates.own.native.ulysses import Ulysses

GATHER = GatherDialect()
LOCAL = LocalDialect()

__all__ = ["GATHER", "LOCAL", "GatherDialect", "LocalDialect", "Ulysses"]
