"""The situations in which sequence parallelism breaks, as named predicates on a case.

A correct path and a wrong one differ only on some batches. The number of times that a run met each
situation shows whether it could have found anything. The docstring of a predicate states why the
situation matters; `ci/docs.py` copies it into `docs/cases.md`.
"""

from harness.generation.situations import layout, content, shape  # noqa: I001 - the order of the table
from harness.generation.situations.registry import SITUATIONS, situations_of

__all__ = ["SITUATIONS", "content", "layout", "shape", "situations_of"]
