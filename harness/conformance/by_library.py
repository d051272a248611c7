"""Make the table of the README, with a line for each library, from the results."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from harness.candidates.published.bugs import about, bugs
from harness.candidates.published.library import Library, libraries
from harness.conformance.document import Results
from harness.conformance.page import library_of, total
from harness.conformance.scripts import PYTHON
from harness.verdict import PASSED

HEADS = (
    *("library", "release", "released", "newest", "Python", "steps", "cases", "passed", "known"),
    *("diverged", "fault", "unsupported", "bugs", "what to do today"),
)


def by_library(results: Results) -> list[tuple[str, ...]]:
    """Return the table as rows, heads first; the most used library comes first."""
    by_release: dict[str, list[dict[str, Any]]] = {}
    for record in results["candidates"].values():
        by_release.setdefault(record["release"], []).append(record)
    judged = [(libraries()[library_of(each[0])], each) for each in by_release.values()]
    judged.sort(key=lambda each: -about(each[0]).stars)
    return [HEADS, *(_row(library, records) for library, records in judged)]


def _row(library: Library, records: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    known, version = about(library), records[0]["version"]
    newer = known.newer_than(version)
    counts = sum((total(record, "verdicts") for record in records), Counter[str]())
    refused = counts["UNSUPPORTED"]
    numbers = (
        len(records),
        counts.total() - refused,
        sum(counts[verdict] for verdict in PASSED),
        *(counts[verdict] for verdict in ("KNOWN", "DIVERGED", "FAULT")),
    )
    return (
        library.name,
        version,
        known.released if version == library.pinned else "",
        f"{newer}, not judged" if newer else "",
        library.python or PYTHON,
        *map(str, numbers),
        f"{100 * refused / max(counts.total(), 1):.0f} %",
        str(_accepted(library, records)),
        known.today,
    )


def _accepted(library: Library, records: Sequence[dict[str, Any]]) -> int:
    """Return how many bugs were seen that have the best grade; others count for nothing here."""
    seen = {key for record in records for key in record["listed"] if key not in record["stale"]}
    return sum(bug.grade == "A" and bug.key in seen for bug in bugs(library))
