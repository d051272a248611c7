"""Published implementations on all goldens and on generated cases: the conformance table."""

from harness.conformance.changes import changes
from harness.conformance.document import (
    BadResults,
    Results,
    examined_record,
    read,
    read_results,
    release_records,
    write,
)
from harness.conformance.examined import Examined, examine
from harness.conformance.findings import findings
from harness.conformance.page import by_library, page
from harness.conformance.releases import sweep
from harness.conformance.request import Request
from harness.conformance.upstream_reports import finding_record, script_of, upstream_reports

__all__ = [
    "BadResults",
    "Examined",
    "Request",
    "Results",
    "by_library",
    "changes",
    "examine",
    "examined_record",
    "finding_record",
    "findings",
    "page",
    "read",
    "read_results",
    "release_records",
    "script_of",
    "sweep",
    "upstream_reports",
    "write",
]
