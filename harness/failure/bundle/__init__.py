"""A failure as a folder that can be carried to another machine: written, found and read.

1. A bundle is written whole or not at all, and the same failure gives the same bytes.
2. It may come from a stranger. Reading one runs no code in it, and a damaged one is refused in one
   sentence with the file and the field.
3. It is small enough to be mailed: tensors are kept only where they differ, and long texts are cut
   (`trim.py`). The record lists what was left out.
"""

from harness.failure.bundle.folder import DEFAULT_FOLDER
from harness.failure.bundle.origin import Origin
from harness.failure.bundle.read import BadBundle, Bundle, find_bundle, read_bundle
from harness.failure.bundle.write import write_bundle

__all__ = [
    "DEFAULT_FOLDER",
    "BadBundle",
    "Bundle",
    "Origin",
    "find_bundle",
    "read_bundle",
    "write_bundle",
]
