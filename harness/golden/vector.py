"""The vector of a golden: its case, and why it is in the store."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import msgspec

from harness.case import Case, InvalidCase, parse
from harness.golden.damage import BadGolden
from harness.untrusted import Misfit, fitted, read_json

FORMAT = "vector/1"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,59}")
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class Vector:
    """A stored case with its description. On its own mesh, the mutants that it hunts show."""

    name: str
    case: Case
    comment: str
    # Mutants of the bank that differ from plain training on this case.
    hunts: tuple[str, ...]
    # The situations that the case is in. They follow from the case, and are stored for a reader.
    situations: tuple[str, ...]
    # Where the case was met.
    source: str

    def meshes(self, sps: Sequence[int], dps: Sequence[int] = (1, 2)) -> list[Case]:
        """Return the case on every mesh on which it is valid and its numbers are the same."""
        # A mean over micro-batches depends on which rows share one, so dp must stay.
        same_dps = (self.case.dp,) if self.case.loss == "micro-mean" else dps
        cases = []
        for dp in same_dps:
            for sp in sps:
                try:
                    cases.append(replace(self.case, dp=dp, sp=sp))
                except InvalidCase:
                    continue
        return cases


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of the file."""

    format: str
    name: str
    case: str
    comment: str
    hunts: tuple[str, ...]
    situations: tuple[str, ...]
    source: str


def vector_record(vector: Vector) -> dict[str, Any]:
    """Return the vector as a JSON object."""
    return {**asdict(vector), "case": str(vector.case)}


def vector_text(vector: Vector) -> bytes:
    """Return the content of the vector's file."""
    record = {"format": FORMAT, **vector_record(vector)}
    return (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode()


def parse_vector(name: str, text: bytes) -> Vector:
    """Return the vector in a file of this name; raise `BadGolden` if it holds none."""
    record = read_record(text, FORMAT, _Record)
    if record.name != name or not NAME.fullmatch(name):
        raise BadGolden(f"name={record.name!r}: must be the file's name, of a-z, 0-9 and -")
    try:
        case = parse(record.case)
    except InvalidCase as error:
        raise BadGolden(str(error)) from None
    if str(case) != record.case or case.dtype != "fp64":
        raise BadGolden(f"case={record.case!r}: must be as the harness writes it, in fp64")
    return Vector(name, case, record.comment, record.hunts, record.situations, record.source)


def read_record(text: bytes, form: str, kind: type[Record]) -> Record:
    """Decode the JSON object in a file; raise `BadGolden` unless it is a record of this format."""
    try:
        record = read_json(text)
    except (ValueError, RecursionError) as error:
        raise BadGolden(f"is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise BadGolden("must hold one JSON object")
    if record.get("format") != form:
        raise BadGolden(f"format={record.get('format')!r}: this version reads {form!r}")
    return decode(record, kind)


def decode(record: Any, kind: type[Record], where: str = "") -> Record:
    """Decode a JSON value; raise `BadGolden` if a field is missing, wrong or unknown."""
    try:
        return fitted(record, kind, where)
    except Misfit as error:
        raise BadGolden(str(error)) from None
