"""Cut what is too long for a bundle, and list what was cut."""

import json
from collections.abc import Mapping
from typing import Any

from harness.compare import Comparison

# The most characters of a text, items of a list, and characters of a whole field as JSON.
TEXT, ITEMS, FIELD = 32 << 10, 1000, 64 << 10
# The most characters of the output, stacks and collectives of all ranks together.
RANKS = 256 << 10


def trim_record(record: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the record with every field within its bounds, and a line for each that was cut."""
    cuts: list[str] = []
    kept: dict[str, Any] = {}
    for name, value in record.items():
        kept[name] = _trim(value, name, cuts)
        if len(json.dumps(kept[name], indent=1)) > FIELD:
            kept[name] = type(value)()
            cuts.append(f"{name}: too long")
    return kept, cuts


def shorten(text: str, most: int = TEXT) -> str:
    """Return the beginning of a text that is longer than this, or the text."""
    return text if len(text) <= most else f"{text[:most]} …"


def ranks_text(comparison: Comparison) -> tuple[str, list[str]]:
    """Return the output, stack and collectives of each rank, and a line for each that was cut.

    Every text has the same share of the room, and its end is kept.
    """
    fault = comparison.fault
    stacks, collectives = (fault.stacks, fault.collectives) if fault else ({}, {})
    ranks = sorted({*comparison.inquiry.logs, *stacks, *collectives})
    lines, cuts = [], []
    share = RANKS // max(3 * len(ranks), 1)
    for rank in ranks:
        for title, text in (
            ("log", comparison.inquiry.logs.get(rank, "")),
            ("stack", stacks.get(rank, "")),
            ("collectives", "\n".join(collectives.get(rank, ()))),
        ):
            if len(text) > share:
                cuts.append(f"{title} of rank {rank}: all but the end")
            shown = text[-share:].rstrip().splitlines()
            if shown or title == "log":
                lines += [f"rank {rank}, {title}", *(f"  {line}" for line in shown or ["empty"])]
    return "\n".join(lines) + "\n", cuts


def _trim(value: Any, name: str, cuts: list[str]) -> Any:
    """Return the value with its texts and lists within bounds; add a line to `cuts` for each."""
    if isinstance(value, str) and len(value) > TEXT:
        cuts.append(f"{name}: all but the beginning")
        return shorten(value)
    if isinstance(value, list):
        if len(value) > ITEMS:
            cuts.append(f"{name}: all but {ITEMS} of {len(value)}")
        return [_trim(item, name, cuts) for item in value[:ITEMS]]
    if isinstance(value, dict):
        return {key: _trim(item, f"{name}.{key}", cuts) for key, item in value.items()}
    return value
