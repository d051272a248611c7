"""Published implementations on all goldens and on generated cases: the conformance table."""

from harness.conformance.document import (
    BadResults,
    Results,
    examined_record,
    read,
    release_records,
    write,
)
from harness.conformance.examined import examine
from harness.conformance.findings import finding_record, findings
from harness.conformance.page import by_library, page
from harness.conformance.request import Request
from harness.conformance.sweep import sweep

__all__ = [
    "BadResults",
    "Request",
    "Results",
    "by_library",
    "examine",
    "examined_record",
    "finding_record",
    "findings",
    "page",
    "read",
    "release_records",
    "sweep",
    "write",
]
