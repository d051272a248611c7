"""What people and machines read of a run."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

# These need torch; the summaries beside them do not, and are read where there may be none.
_HOMES = {
    **dict.fromkeys(
        ("DEFAULT_FOLDER", "BadBundle", "Bundle", "read_bundle", "write_bundle"), "bundle"
    ),
    "comparison_record": "record",
    **dict.fromkeys(("explain", "replay"), "text"),
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
