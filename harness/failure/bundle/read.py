"""Find and read a bundle, which may come from a stranger.

failure.json         the case, what the same ranks ran before it, and all that is known
explanation.txt      the same for people
tensors.safetensors  for each key that differs: expected and got
ranks.txt            for each rank: the end of its output, its stack, its collectives

A bundle is smaller than MOST_BYTES unless its case lines are not: those are never cut.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from harness.against import is_reference
from harness.case import Case, parse
from harness.compare import Differing
from harness.compare.columns import BatchColumn
from harness.failure.bundle.folder import DEFAULT_FOLDER, fallback_folder, is_private, list_bundles
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

JsonObject = dict[str, Any]
Decoded = TypeVar("Decoded")


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of `failure.json`."""

    format: int
    case: str
    before: tuple[str, ...]
    # The most that a case may have to a sequence, so that a bundle cannot start more processes.
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
    first: JsonObject | None
    findings: list[Any]
    scale: JsonObject | None
    looks: list[Any]
    seen: list[Any]
    cause: str
    keys: JsonObject
    loss: list[Any] | None
    fault: JsonObject | None
    printed: JsonObject
    picture: JsonObject | None
    larger: JsonObject | None
    explanation: str
    replay: str
    tensors: tuple[Described, ...]
    left_out: tuple[str, ...]
    # Older bundles have none.
    columns: tuple[BatchColumn, ...] = ()


class BadBundle(BadInput):
    """The folder cannot be read as a bundle; the message has the file and what is wrong in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The parts that a replay needs: case, candidate, and the mark to recognise the failure by."""

    case: Case
    candidate: str
    # The cases that the same ranks must run before it.
    before: tuple[Case, ...]
    # How many ranks there must be; 0 if that is as many as the cases need.
    ranks: int
    mark: Mark
    origin: Origin
    explanation: str
    # In execution order.
    tensors: tuple[Differing, ...]
    left_out: tuple[str, ...]


def find_bundle(name: str) -> Path:
    """Return the folder at a path, or that of a bundle of this user by its name or its case's id.

    Raise `BadBundle` if several bundles have the id, or none.
    """
    if os.sep in name or os.path.lexists(name):
        return Path(name)
    bundles = list_bundles((DEFAULT_FOLDER, *filter(is_private, (fallback_folder(),))))
    matches = [each for each in bundles if name in (each, each.partition("-")[0])]
    if len(matches) == 1:
        return bundles[matches[0]]
    if matches:
        raise BadBundle(f"bundle={name}: stands for {', '.join(matches)}; name one of them")
    near = ", ".join(get_close_matches(name, bundles, 3, 0.0)) or "nothing, it is empty"
    raise BadBundle(
        f"bundle={name}: {name} cannot be read: No such file or directory, nor is it in "
        f"{DEFAULT_FOLDER}; near: {near}"
    )


def read_bundle(place: Path) -> Bundle:
    """Return the bundle in a folder, or beside a record file; raise `BadBundle` if it is none."""
    folder, record_name = place, RECORD
    if not os.path.isdir(place):  # noqa: PTH112 - unlike Path.is_dir, it never raises
        folder, record_name = place.parent, place.name
    record = _read(place, folder, record_name, RECORD, _parse_record)
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
    place: Path, folder: Path, name: str, kind: str, decode: Callable[[bytes], Decoded]
) -> Decoded:
    """Decode one file, within the bound of its kind; turn every error into a `BadBundle`."""
    try:
        return decode(read_file(folder / name, MOST_READ[kind]))
    except OSError as error:
        why = error.strerror or error
        raise BadBundle(f"bundle={place}: {name} cannot be read: {why}") from None
    except ValueError as error:
        # A name that is no path at all raises `ValueError`, like a file that is no record.
        raise BadBundle(f"bundle={place}: {name}: {error}") from None


def _parse_record(data: bytes) -> _Record:
    """Return the record in a file; raise `ValueError` if it is none, or contradicts itself."""
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
    if not is_reference(record.origin.against):
        raise Misfit(f"origin.against={record.origin.against[:20]!r}: is no reference")
    if record.id != case.id:
        raise Misfit(f"id={record.id[:20]!r}: its case has {case.id}")
    if record.verdict not in Verdict.__members__ or record.mark.verdict != record.verdict:
        raise Misfit(f"verdict={record.verdict[:20]!r}: is none, or not that of its mark")
    for line in record.before:
        parse(line)
    return record
