"""A failure as a folder that can be carried to another machine."""

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
