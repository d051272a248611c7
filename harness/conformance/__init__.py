"""Published implementations on all goldens and on generated cases: the conformance table."""

from harness.conformance.document import (
    BadResults,
    Results,
    examined_record,
    read,
    release_records,
    write,
)
from harness.conformance.examined import Examined, examine
from harness.conformance.findings import findings
from harness.conformance.page import by_library, page, summary
from harness.conformance.request import Request
from harness.conformance.sweep import Release, sweep

__all__ = [
    "BadResults",
    "Examined",
    "Release",
    "Request",
    "Results",
    "by_library",
    "examine",
    "examined_record",
    "findings",
    "page",
    "read",
    "release_records",
    "summary",
    "sweep",
    "write",
]
