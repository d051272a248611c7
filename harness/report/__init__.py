"""What people and machines read of a run."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.report.bundle import BadBundle, Bundle, find_bundle, read_bundle
    from harness.report.folder import DEFAULT_FOLDER
    from harness.report.mark import Mark, mark_of
    from harness.report.origin import Origin
    from harness.report.record import comparison_record
    from harness.report.text import explain, replay
    from harness.report.write import write_bundle

__all__ = [
    "DEFAULT_FOLDER",
    "BadBundle",
    "Bundle",
    "Mark",
    "Origin",
    "comparison_record",
    "explain",
    "find_bundle",
    "mark_of",
    "read_bundle",
    "replay",
    "write_bundle",
]

# These need torch; the summaries beside them do not, and are read where there may be none.
_HOMES = {
    **dict.fromkeys(("BadBundle", "Bundle", "find_bundle", "read_bundle"), "bundle"),
    "DEFAULT_FOLDER": "folder",
    **dict.fromkeys(("Mark", "mark_of"), "mark"),
    "Origin": "origin",
    "comparison_record": "record",
    **dict.fromkeys(("explain", "replay"), "text"),
    "write_bundle": "write",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
