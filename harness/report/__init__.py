"""What people and machines read of a run."""

from harness.report.bundle import DEFAULT_FOLDER, BadBundle, Bundle, read_bundle, write_bundle
from harness.report.record import comparison_record
from harness.report.text import explain, replay

__all__ = [
    "DEFAULT_FOLDER",
    "BadBundle",
    "Bundle",
    "comparison_record",
    "explain",
    "read_bundle",
    "replay",
    "write_bundle",
]
