"""Our own sequence-parallel step: the positive control, and the page to learn Ulysses from."""

from harness.candidates.own.native.ulysses import GatherDialect, LocalDialect, Ulysses

GATHER = GatherDialect()
LOCAL = LocalDialect()

__all__ = ["GATHER", "LOCAL", "GatherDialect", "LocalDialect", "Ulysses"]
