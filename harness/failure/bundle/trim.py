"""What is too long for a bundle is cut, and it is said what was."""

import json
from collections.abc import Mapping
from typing import Any

from harness.compare import Comparison

# The most of one text, of one list, and of one field of a record with all that is in it.
TEXT, ITEMS, FIELD = 32 << 10, 1000, 64 << 10
# The most of what all ranks said and did together.
RANKS = 256 << 10


def trimmed(record: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Every field within its bounds, and what was done to those that were not."""
    done: list[str] = []
    kept: dict[str, Any] = {}
    for name, value in record.items():
        kept[name] = _cut(value, name, done)
        if len(json.dumps(kept[name], indent=1)) > FIELD:
            kept[name] = type(value)()
            done.append(f"{name}: too long")
    return kept, done


def shortened(text: str, most: int = TEXT) -> str:
    """The beginning of a text."""
    return text if len(text) <= most else f"{text[:most]} …"


def ranks_text(comparison: Comparison) -> tuple[str, list[str]]:
    """What each rank said and did last; of too much, the end."""
    fault = comparison.fault
    stacks, collectives = (fault.stacks, fault.collectives) if fault else ({}, {})
    ranks = sorted({*comparison.logs, *stacks, *collectives})
    lines, done = [], []
    share = RANKS // max(3 * len(ranks), 1)
    for rank in ranks:
        for what, text in (
            ("log", comparison.logs.get(rank, "")),
            ("stack", stacks.get(rank, "")),
            ("collectives", "\n".join(collectives.get(rank, ()))),
        ):
            if len(text) > share:
                done.append(f"{what} of rank {rank}: all but the end")
            shown = text[-share:].rstrip().splitlines()
            if shown or what == "log":
                lines += [f"rank {rank}, {what}", *(f"  {line}" for line in shown or ["empty"])]
    return "\n".join(lines) + "\n", done


def _cut(value: Any, name: str, done: list[str]) -> Any:
    if isinstance(value, str) and len(value) > TEXT:
        done.append(f"{name}: all but the beginning")
        return shortened(value)
    if isinstance(value, list):
        if len(value) > ITEMS:
            done.append(f"{name}: all but {ITEMS} of {len(value)}")
        return [_cut(item, name, done) for item in value[:ITEMS]]
    if isinstance(value, dict):
        return {key: _cut(item, f"{name}.{key}", done) for key, item in value.items()}
    return value
