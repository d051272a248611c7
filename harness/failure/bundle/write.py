"""A failure becomes a bundle."""

import json
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from harness.compare import Comparison
from harness.failure.bundle.folder import DEFAULT_FOLDER, elsewhere, private
from harness.failure.bundle.origin import Origin, seen_here
from harness.failure.bundle.read import EXPLANATION, FORMAT, RANKS, RECORD, TENSORS
from harness.failure.bundle.tensors import pack
from harness.failure.bundle.trim import TEXT, ranks_text, shortened, trimmed
from harness.failure.signature import mark_of
from harness.names import file_name
from harness.report.record import comparison_record
from harness.report.text import explain
from harness.storage import write_folder

# What the failure is, of which nothing may be missing; and what has bounds of its own.
NEVER_CUT = ("case", "before", "ranks", "id", "candidate", "verdict", "picture", "larger")


def write_bundle(
    comparison: Comparison, folder: Path = DEFAULT_FOLDER, origin: Origin | None = None
) -> Path:
    """Write the folder, there or where it can be written; it is there whole or not at all."""
    files = _files(comparison, origin or seen_here())
    name = f"{comparison.case.id}-{file_name(comparison.candidate)}"
    try:
        write_folder(folder / name, files)
        return folder / name
    except OSError:
        write_folder(private(elsewhere()) / name, files)
        return elsewhere() / name


def _files(comparison: Comparison, origin: Origin) -> dict[str, bytes]:
    described, tensors = pack(comparison.differing)
    ranks, cut = ranks_text(comparison)
    return {
        RECORD: _text(json.dumps(_record(comparison, origin, described, cut), indent=1)),
        EXPLANATION: _text(shortened(explain(comparison), 2 * TEXT)),
        TENSORS: tensors,
        RANKS: _text(ranks),
    }


def _text(text: str) -> bytes:
    # Half a surrogate pair may come from anywhere.
    return f"{text.rstrip()}\n".encode(errors="replace")


def _record(
    comparison: Comparison, origin: Origin, described: list[dict[str, Any]], cut: list[str]
) -> dict[str, Any]:
    whole = comparison_record(comparison)
    fixed = {name: whole.pop(name) for name in NEVER_CUT}
    rest, cut_here = trimmed({**whole, "origin": asdict(origin)})
    return {
        "format": FORMAT,
        **fixed,
        "mark": asdict(mark_of(comparison)),
        **rest,
        "tensors": described,
        "left_out": [*_tensors_left_out(comparison), *cut_here, *cut],
    }


def _tensors_left_out(comparison: Comparison) -> list[str]:
    kept = {one.key for one in comparison.differing}
    missing = [result.key for result in comparison.keys if result.wrong and result.key not in kept]
    parts = [
        f"tensor {one.key}: all but {len(one.rows)} of {one.shape[0]} rows"
        for one in comparison.differing
        if one.rows is not None
    ]
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return parts + ([f"tensors {', '.join(missing[:3])}{more}"] if missing else [])
