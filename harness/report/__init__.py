"""A comparison for people and for machines."""

from harness.report.brief import brief, headline
from harness.report.record import comparison_record
from harness.report.text import explain, explain_no_start, replay

__all__ = [
    "brief",
    "comparison_record",
    "explain",
    "explain_no_start",
    "headline",
    "replay",
]
