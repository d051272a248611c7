"""Writes the fields of a case as one line of text.

    case/1 rows=3:111,4:1011:left ids=[1,2,3],[4,5,6,7] heads=4/2 layers=1 vocab=32 sp=2 dp=1 ...

A row is `length:mask` or `length:mask:left`. A long run of equal mask bits is written
`1{8000}`.
"""

import itertools
import json
from collections.abc import Mapping
from typing import Any

from harness.case.row import Row

FORMAT = 1
# A run of up to so many equal bits is written bit by bit.
LONGEST_PLAIN_RUN = 11

# Name in a line -> field of `Case`. A line has all of ALWAYS and LAST, and of UNLESS_DEFAULT
# those that differ from their defaults.
ALWAYS = {"layers": "layers", "vocab": "vocab", "sp": "sp", "dp": "dp"}
UNLESS_DEFAULT = {
    "dim": "head_dim",
    "model": "model",
    "tied": "tied",
    "window": "window",
    "micro": "micro_batches",
    "loss": "loss",
    "kernel": "kernel",
    "checkpoint": "checkpoint",
    "wrapper": "wrapper",
    "sync": "sync",
    "compiled": "compiled",
    "mixed": "mixed",
    "pad": "pad_id",
    "steps": "steps",
    "nudge": "nudge",
    "columns": "columns",
}
LAST = {"dtype": "dtype", "seed": "seed"}
# Precedes the name of a setting of the step, as in setting.packed=true.
SETTING = "setting."


def format_line(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return the canonical line: sizes, dtype and seed always, the rest unless it is default."""
    words = [f"case/{FORMAT}", f"rows={','.join(map(_format_row, fields['rows']))}"]
    if fields["ids"] is not None:
        rows = (json.dumps(ids, separators=(",", ":")) for ids in fields["ids"])
        words.append(f"ids={','.join(rows)}")
    words.append(f"heads={fields['heads']}/{fields['kv_heads']}")
    changed = {n: a for n, a in UNLESS_DEFAULT.items() if fields[a] != defaults[a]}
    words += [f"{n}={_format_value(fields[a])}" for n, a in {**ALWAYS, **changed}.items()]
    words += [f"{SETTING}{name}={value}" for name, value in fields["settings"]]
    words += [f"{n}={_format_value(fields[a])}" for n, a in LAST.items()]
    return " ".join(words)


def _format_row(row: Row) -> str:
    runs = ((bit, len(list(group))) for bit, group in itertools.groupby(row.mask))
    mask = "".join(b * n if n <= LONGEST_PLAIN_RUN else f"{b}{{{n}}}" for b, n in runs)
    return f"{len(row)}:{mask}" + (":left" if row.side == "left" else "")


def _format_value(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
