"""The situations in which sequence parallelism breaks, as named predicates on a case.

A correct path and a wrong one differ only on some batches. Counting how often a run met each
situation tells whether it could have seen anything. Every predicate says which mistakes hide
wherever it does not hold.
"""

from harness.generation.situations import layout, content, shape  # noqa: I001 - the order of the table
from harness.generation.situations.registry import SITUATIONS, situations_of

__all__ = ["SITUATIONS", "content", "layout", "shape", "situations_of"]
