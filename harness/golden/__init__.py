"""Goldens: cases that last, and what plain training computes on them in fp64.

One golden is valid for every sp, dp, candidate and device, since none of them changes what is to
be computed.
"""

from harness.golden.contents import Golden, as_files, examine, only_vectors
from harness.golden.damage import BadGolden
from harness.golden.store import Store
from harness.golden.vector import Vector

__all__ = [
    "BadGolden",
    "Golden",
    "Store",
    "Vector",
    "as_files",
    "examine",
    "only_vectors",
]
