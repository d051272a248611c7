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
from typing import Annotated, Any, TypeVar

import msgspec

from harness.case import Case, parse
from harness.compare import Differing
from harness.failure.bundle.folder import DEFAULT_FOLDER, elsewhere, is_private, listed
from harness.failure.bundle.origin import Origin
from harness.failure.bundle.tensors import Described, unpack
from harness.failure.signature import Mark
from harness.untrusted import BadInput, Misfit, fitted, read_file, read_json
from harness.verdict import Verdict

FORMAT = 8
MOST_BYTES = 4 << 20
RECORD, EXPLANATION = "failure.json", "explanation.txt"
TENSORS, RANKS = "tensors.safetensors", "ranks.txt"
# The case line of the largest batch with stated ids can still be read.
MOST_READ = {RECORD: 1 << 28, TENSORS: MOST_BYTES}

Object = dict[str, Any]
Part = TypeVar("Part")


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file with the record has."""

    format: int
    case: str
    before: tuple[str, ...]
    # As many as a case may have to a sequence; who sent a bundle starts no more.
    ranks: Annotated[int, msgspec.Meta(ge=0, le=1024)]
    id: str
    candidate: str
    against: str
    verdict: str
    mark: Mark
    origin: Origin
    reason: str
    elements: int
    unjudged: list[Any]
    uncompared: list[Any]
    stood_in: list[Any]
    used: float
    first: Object | None
    findings: list[Any]
    scale: Object | None
    looks: list[Any]
    seen: list[Any]
    cause: str
    keys: Object
    loss: list[Any] | None
    fault: Object | None
    printed: Object
    picture: Object | None
    larger: Object | None
    explanation: str
    replay: str
    tensors: tuple[Described, ...]
    left_out: tuple[str, ...]


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
    tensors = _read(place, folder, TENSORS, TENSORS, lambda data: unpack(record.tensors, data))
    return Bundle(
        case=parse(record.case),
        candidate=record.candidate,
        before=tuple(map(parse, record.before)),
        ranks=record.ranks,
        mark=record.mark,
        origin=record.origin,
        explanation=record.explanation,
        tensors=tensors,
        left_out=record.left_out,
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


def _record(data: bytes) -> _Record:
    try:
        document = read_json(data)
    except (ValueError, RecursionError):
        raise Misfit("is not a failure record") from None
    if not isinstance(document, dict) or not isinstance(document.get("case"), str):
        raise Misfit("is not a failure record")
    case = parse(document["case"])
    record = fitted(document, _Record)
    if record.format != FORMAT:
        raise Misfit(f"format={record.format}: this version reads {FORMAT}")
    if record.id != case.id:
        raise Misfit(f"id={record.id[:20]!r}: its case has {case.id}")
    if record.verdict not in Verdict.__members__ or record.mark.verdict != record.verdict:
        raise Misfit(f"verdict={record.verdict[:20]!r}: is none, or not that of its mark")
    for line in record.before:
        parse(line)
    return record
