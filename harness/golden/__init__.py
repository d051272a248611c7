"""Goldens: stored cases, each with the losses and gradients that plain training computes on it.

Terms:

    vector      a case with a comment, the mutants that it hunts, and where it was met
    golden      a vector with its tensors, and its line in the manifest
    store       a folder of goldens: `vectors/`, `tensors/` and `manifest.json`
    own golden  holds what a candidate's own step computes at sp 1 in fp64, not plain training
    recorded    holds what a candidate computed on one device in a low precision

1. Numbers are computed in fp64 on one device, so one golden is valid for every sp, dp, candidate
   and device: none of them changes what should be computed.
2. Two references must agree on a golden when it is made, and before a candidate is blamed.
3. Nothing in a store can execute. The manifest has the SHA-256 of every file. Each damage is named
   in one sentence, and nothing is repaired (`contents.py`).
4. Stored bits stay when they are computed again, unless the user accepts new ones. A move within
   rounding is drift; a larger one changes what a golden means, and is accepted with a reason only
   (`generate.py`).
5. A store is read as it was at one moment, and written whole or not at all, also if a writer is
   killed or two write at once (`store.py`).
6. Bits of two devices are not compared. There each result must be within its budget of plain
   training in fp64 (`recorded.py`).
"""

from harness.golden.contents import Golden, examine, read_vectors, store_files
from harness.golden.damage import BadGolden
from harness.golden.store import Store
from harness.golden.vector import Vector

__all__ = [
    "BadGolden",
    "Golden",
    "Store",
    "Vector",
    "examine",
    "read_vectors",
    "store_files",
]
