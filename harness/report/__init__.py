"""A comparison for people and for machines."""

from harness.report.record import comparison_record
from harness.report.text import explain, explain_no_start, look_lines, replay

__all__ = ["comparison_record", "explain", "explain_no_start", "look_lines", "replay"]
