"""One golden's case, and what it is there for."""

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
    """A case that lasts. Its mesh is the one on which what it hunts shows."""

    name: str
    case: Case
    comment: str
    # Mutants of the bank that differ from plain training on this case.
    hunts: tuple[str, ...]
    # The situations that the case is in; derived from it, and kept for a reader.
    situations: tuple[str, ...]
    source: str

    def meshes(self, sps: Sequence[int], dps: Sequence[int] = (1, 2)) -> list[Case]:
        """Yield the batch on every mesh that it fits and on which it means the same."""
        # A mean over micro-batches depends on which rows share one, and so on how many replicas.
        ways = (self.case.dp,) if self.case.loss == "micro-mean" else dps
        cases = []
        for dp in ways:
            for sp in sps:
                try:
                    cases.append(replace(self.case, dp=dp, sp=sp))
                except InvalidCase:
                    continue
        return cases


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What its file has."""

    format: str
    name: str
    case: str
    comment: str
    hunts: tuple[str, ...]
    situations: tuple[str, ...]
    source: str


def vector_record(vector: Vector) -> dict[str, Any]:
    """As JSON."""
    return {**asdict(vector), "case": str(vector.case)}


def vector_text(vector: Vector) -> bytes:
    """As it is stored."""
    record = {"format": FORMAT, **vector_record(vector)}
    return (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode()


def parse_vector(name: str, text: bytes) -> Vector:
    """The vector in a file of this name; refuses what is not one."""
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
    """What is in a JSON object of this format."""
    try:
        record = read_json(text)
    except (ValueError, RecursionError) as error:
        raise BadGolden(f"is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise BadGolden("must hold one JSON object")
    if record.get("format") != form:
        raise BadGolden(f"format={record.get('format')!r}: this version reads {form!r}")
    return whole(record, kind)


def whole(record: Any, kind: type[Record], where: str = "") -> Record:
    """All that it has to hold, and nothing else."""
    try:
        return fitted(record, kind, where)
    except Misfit as error:
        raise BadGolden(str(error)) from None
