"""A case as a JSON object, and back; for tools that do not want to parse a line."""

import dataclasses
from typing import Any

from harness.case.case import Case
from harness.case.invalid import InvalidCase
from harness.case.line import FORMAT
from harness.case.row import Row


def to_record(case: Case) -> dict[str, Any]:
    """Every field by its own name, nothing left out."""
    record = {field.name: getattr(case, field.name) for field in dataclasses.fields(case)}
    record["rows"] = [{"mask": row.mask, "side": row.side} for row in case.rows]
    record["ids"] = None if case.ids is None else [list(row) for row in case.ids]
    return {"format": FORMAT, **record}


def from_record(record: object) -> Case:
    """The case that an object describes; `InvalidCase` for anything else."""
    if not isinstance(record, dict):
        raise InvalidCase.because("case", repr(record), f"use an object with format {FORMAT}")
    if type(record.get("format")) is not int or record["format"] != FORMAT:
        raise InvalidCase.because(
            "format", repr(record.get("format")), f"use format {FORMAT}, the one of this version"
        )
    fields = {name: value for name, value in record.items() if name != "format"}
    known = Case.__dataclass_fields__
    for name, value in fields.items():
        if name not in known:
            raise InvalidCase.because(str(name), value, f"unknown; use {', '.join(known)}")
    rows = fields.get("rows")
    if not isinstance(rows, list):
        raise InvalidCase.because("rows", repr(rows), "use a list of objects with mask and side")
    fields["rows"] = tuple(_row(r, row) for r, row in enumerate(rows))
    ids = fields.get("ids")
    if ids is not None:
        if not isinstance(ids, list) or not all(isinstance(row, list) for row in ids):
            raise InvalidCase.because("ids", repr(ids), "use one list of token ids per row")
        fields["ids"] = tuple(map(tuple, ids))
    return Case(**fields)


def _row(r: int, row: object) -> Row:
    if not isinstance(row, dict) or not {"mask"} <= set(row) <= {"mask", "side"}:
        raise InvalidCase.because(f"rows[{r}]", repr(row), "use an object with mask and side")
    return Row(**row)
