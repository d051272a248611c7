"""A failure as a folder that can be carried to another machine.

failure.json         the case, what the same ranks ran before it, and all that is known
explanation.txt      the same for people
tensors.safetensors  what was expected and what came, of each key that differs
ranks.txt            of each rank: the end of its output, its stack, its collectives

A bundle is smaller than MOST_BYTES unless its case lines are not: those are never cut.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args

from harness.against import Against
from harness.case import Case, parse
from harness.compare import Differing
from harness.failure.bundle.folder import DEFAULT_FOLDER, elsewhere, is_private, listed
from harness.failure.bundle.origin import Origin
from harness.failure.bundle.tensors import Malformed, unpack
from harness.failure.sameness import Mark
from harness.outside import BadInput, read_file, read_json
from harness.verdict import Verdict

FORMAT = 8
MOST_BYTES = 4 << 20
RECORD, EXPLANATION = "failure.json", "explanation.txt"
TENSORS, RANKS = "tensors.safetensors", "ranks.txt"
# The case line of the largest batch with stated ids can still be read.
MOST_READ = {RECORD: 1 << 28, TENSORS: MOST_BYTES}

# As many as a case may have to a sequence; who sent a bundle starts no more.
MOST_RANKS = 1024
_NUMBER = int | float
_KINDS: dict[str, Any] = {
    "case": str,
    "before": list,
    "ranks": int,
    "id": str,
    "candidate": str,
    "against": str,
    "verdict": str,
    "format": int,
    "mark": dict,
    "origin": dict,
    "reason": str,
    "elements": int,
    "unjudged": list,
    "uncompared": list,
    "stood_in": list,
    "used": _NUMBER,
    "first": dict | NoneType,
    "findings": list,
    "scale": dict | NoneType,
    "looks": list,
    "seen": list,
    "cause": str,
    "keys": dict,
    "loss": list | NoneType,
    "fault": dict | NoneType,
    "printed": dict,
    "picture": dict | NoneType,
    "larger": dict | NoneType,
    "explanation": str,
    "replay": str,
    "tensors": list,
    "left_out": list,
}
_ORIGIN: dict[str, Any] = {
    "device": str,
    "transport": str,
    "ranks": int,
    "against": str,
    "campaign": dict | NoneType,
    "test": str,
    "blob": str,
    "versions": dict,
}
Part = TypeVar("Part")


class BadBundle(BadInput):
    """A folder that holds no failure; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What is needed to see a failure again, and to know it when it is seen."""

    case: Case
    candidate: str
    # What the same ranks must have run before.
    before: tuple[Case, ...]
    # How many of them there must be; 0 where that is as many as the cases need.
    ranks: int
    mark: Mark
    origin: Origin
    explanation: str
    # In execution order.
    tensors: tuple[Differing, ...]
    left_out: tuple[str, ...]


def find_bundle(name: str) -> Path:
    """The folder behind a path, or behind the id of a bundle that was written here."""
    if os.sep in name or os.path.lexists(name):
        return Path(name)
    kept = listed((DEFAULT_FOLDER, *filter(is_private, (elsewhere(),))))
    meant = [each for each in kept if name in (each, each.partition("-")[0])]
    if len(meant) == 1:
        return kept[meant[0]]
    if meant:
        raise BadBundle(f"bundle={name}: stands for {', '.join(meant)}; name one of them")
    near = ", ".join(get_close_matches(name, kept, 3, 0.0)) or "nothing, it is empty"
    raise BadBundle(
        f"bundle={name}: {name} cannot be read: No such file or directory, nor is it in "
        f"{DEFAULT_FOLDER}; near: {near}"
    )


def read_bundle(place: Path) -> Bundle:
    """The failure in a folder; `BadBundle` for anything else."""
    folder, record_name = place, RECORD
    if not os.path.isdir(place):  # noqa: PTH112 - unlike the other, this one never raises
        folder, record_name = place.parent, place.name
    record = _read(place, folder, record_name, RECORD, _record)
    tensors = _read(place, folder, TENSORS, TENSORS, lambda data: unpack(record["tensors"], data))
    return Bundle(
        case=parse(record["case"]),
        candidate=record["candidate"],
        before=tuple(map(parse, record["before"])),
        ranks=record["ranks"],
        mark=Mark(**record["mark"]),
        origin=Origin(**record["origin"]),
        explanation=record["explanation"],
        tensors=tensors,
        left_out=tuple(record["left_out"]),
    )


def _read(
    place: Path, folder: Path, name: str, kind: str, decode: Callable[[bytes], Part]
) -> Part:
    try:
        return decode(read_file(folder / name, MOST_READ[kind]))
    except OSError as error:
        why = error.strerror or error
        raise BadBundle(f"bundle={place}: {name} cannot be read: {why}") from None
    except ValueError as error:
        # What is no path at all fails like what is no record.
        raise BadBundle(f"bundle={place}: {name}: {error}") from None


def _record(data: bytes) -> dict[str, Any]:
    try:
        record = read_json(data)
    except (ValueError, RecursionError):
        raise Malformed("is not a failure record") from None
    if not isinstance(record, dict) or not isinstance(record.get("case"), str):
        raise Malformed("is not a failure record")
    case = parse(record["case"])
    _check(record, _KINDS, "")
    mark, origin = record["mark"], record["origin"]
    _check(mark, dict.fromkeys(("verdict", "where", "root"), str), "mark.")
    _check(origin, _ORIGIN, "origin.")
    if origin["against"] not in get_args(Against):
        raise Malformed(f"origin.against={origin['against'][:20]!r}: is none of plain and self")
    for texts in (origin["versions"], dict(enumerate(record["left_out"]))):
        _check(texts, dict.fromkeys(texts, str), "")
    if record["format"] != FORMAT:
        raise Malformed(f"format={record['format']}: this version reads {FORMAT}")
    if record["id"] != case.id:
        raise Malformed(f"id={record['id'][:20]!r}: its case has {case.id}")
    if record["verdict"] not in Verdict.__members__ or mark["verdict"] != record["verdict"]:
        raise Malformed(f"verdict={record['verdict'][:20]!r}: is none, or not that of its mark")
    for line in record["before"]:
        parse(line)
    if not 0 <= record["ranks"] <= MOST_RANKS:
        raise Malformed(f"ranks={record['ranks']}: is none of 0 to {MOST_RANKS}")
    return record


def _check(record: dict[Any, Any], kinds: dict[Any, Any], where: str) -> None:
    """Whether all of these are there, of these kinds, and nothing else."""
    for name, kind in kinds.items():
        if name not in record or not _is(record[name], kind):
            raise Malformed(f"{where}{name} is missing or is not what it should be")
    unknown = sorted(record.keys() - kinds.keys())
    if unknown:
        raise Malformed(f"{where}{unknown[0][:20]!r} is unknown")


def _is(value: object, kind: Any) -> bool:
    # A truth value counts as a number, and was not written as one.
    return isinstance(value, kind) and not isinstance(value, bool)
