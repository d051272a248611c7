"""Write a failure as a bundle."""

import json
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from harness.compare import Comparison
from harness.failure.bundle.folder import DEFAULT_FOLDER, fallback_folder, make_private
from harness.failure.bundle.origin import Origin, local_origin
from harness.failure.bundle.read import EXPLANATION, FORMAT, RANKS, RECORD, TENSORS
from harness.failure.bundle.tensors import pack
from harness.failure.bundle.trim import TEXT, ranks_text, shorten, trim_record
from harness.failure.signature import mark_of
from harness.names import file_name
from harness.report.record import comparison_record
from harness.report.text import explain
from harness.storage import write_folder

# Fields that a replay needs, and the pictures, which have bounds of their own.
NEVER_CUT = ("case", "before", "ranks", "id", "candidate", "verdict", "picture", "larger")


def write_bundle(
    comparison: Comparison, folder: Path = DEFAULT_FOLDER, origin: Origin | None = None
) -> Path:
    """Write the bundle whole or not at all, and return its path.

    If the folder cannot be written, use a private one in the system's temporary folder.
    """
    files = _files(comparison, origin or local_origin())
    name = f"{comparison.case.id}-{file_name(comparison.candidate)}"
    try:
        write_folder(folder / name, files)
        return folder / name
    except OSError:
        write_folder(make_private(fallback_folder()) / name, files)
        return fallback_folder() / name


def _files(comparison: Comparison, origin: Origin) -> dict[str, bytes]:
    described, tensors = pack(comparison.measured.differing)
    ranks, ranks_cut = ranks_text(comparison)
    return {
        RECORD: _encode(json.dumps(_record(comparison, origin, described, ranks_cut), indent=1)),
        EXPLANATION: _encode(shorten(explain(comparison), 2 * TEXT)),
        TENSORS: tensors,
        RANKS: _encode(ranks),
    }


def _encode(text: str) -> bytes:
    # A rank may have printed half a surrogate pair, which UTF-8 cannot encode.
    return f"{text.rstrip()}\n".encode(errors="replace")


def _record(
    comparison: Comparison, origin: Origin, described: list[dict[str, Any]], ranks_cut: list[str]
) -> dict[str, Any]:
    whole = comparison_record(comparison)
    fixed = {name: whole.pop(name) for name in NEVER_CUT}
    rest, fields_cut = trim_record({**whole, "origin": asdict(origin)})
    return {
        "format": FORMAT,
        **fixed,
        "mark": asdict(mark_of(comparison)),
        **rest,
        "tensors": described,
        "left_out": [*_tensors_left_out(comparison), *fields_cut, *ranks_cut],
    }


def _tensors_left_out(comparison: Comparison) -> list[str]:
    """Return a line for each tensor that is kept in part, and one for those that are not kept."""
    kept = {tensor.key for tensor in comparison.measured.differing}
    missing = [
        result.key
        for result in comparison.measured.keys
        if result.wrong and result.key not in kept
    ]
    parts = [
        f"tensor {tensor.key}: all but {len(tensor.rows)} of {tensor.shape[0]} rows"
        for tensor in comparison.measured.differing
        if tensor.rows is not None
    ]
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return parts + ([f"tensors {', '.join(missing[:3])}{more}"] if missing else [])
