"""From a store's files to goldens and back, with all damages. Nothing here touches the disk."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar, get_args

from harness.case import Dtype
from harness.generation.situations import situations_of
from harness.golden.damage import BadGolden, Damage
from harness.golden.manifest import (
    FILE,
    Listed,
    manifest_text,
    parse_manifest,
    sha256,
    tensor_file,
    vector_file,
)
from harness.golden.store import Files
from harness.golden.tensors import Stored, parse_tensors, tensor_bytes
from harness.golden.vector import Vector, parse_vector, vector_text

Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class Golden:
    """A vector, its tensors, and its line in the manifest."""

    vector: Vector
    stored: Stored
    listed: Listed


def examine(files: Files) -> tuple[dict[str, Golden], list[Damage]]:
    """Return the goldens that are whole, by name, and every damage of the store."""
    if FILE not in files:
        return {}, [Damage(FILE, "is missing; write it with `golden generate`")]
    try:
        listed = parse_manifest(files[FILE])
    except BadGolden as error:
        return {}, [Damage(FILE, str(error))]
    goldens: dict[str, Golden] = {}
    damages: list[Damage] = []
    for name, entry in listed.items():
        golden = _examine_golden(name, entry, files, damages)
        if golden:
            goldens[name] = golden
    known = {FILE, *map(vector_file, listed), *map(tensor_file, listed)}
    extra = sorted(files.keys() - known)
    damages += [Damage(file, "is not in the manifest; remove it") for file in extra]
    if not listed:
        damages.append(Damage(FILE, "lists no golden"))
    return goldens, damages


def read_vectors(files: Files) -> dict[str, Vector]:
    """Return the vectors of a store that has no manifest yet; raise `BadGolden` if it has more."""
    vectors = {}
    for file, text in files.items():
        name = file.removeprefix("vectors/").removesuffix(".json")
        if file != vector_file(name):
            raise BadGolden(f"{file}: {FILE} is missing, and there is more than vectors")
        try:
            vectors[name] = parse_vector(name, text)
        except BadGolden as error:
            raise BadGolden(f"{file}: {error}") from None
    if not vectors:
        raise BadGolden("vectors: there is none; begin with `golden add`")
    return vectors


def store_files(goldens: dict[str, Golden]) -> dict[str, bytes]:
    """Return all files of a store with these goldens."""
    files: dict[str, bytes] = {}
    listed = {}
    for name, golden in goldens.items():
        vector, tensors = vector_text(golden.vector), tensor_bytes(golden.stored)
        files |= {vector_file(name): vector, tensor_file(name): tensors}
        commit, reason = golden.listed.commit, golden.listed.reason
        listed[name] = Listed(sha256(vector), sha256(tensors), commit, reason)
    return {**files, FILE: manifest_text(listed)}


def require_unchanged(before: Files, goldens: dict[str, Golden]) -> Callable[[Files], Files]:
    """Return a function for `Store.change` that writes these goldens.

    It raises `BadGolden` if the files of the store are no longer the ones they were made from.
    """

    def replace_files(now: Files) -> Files:
        if now != before:
            raise BadGolden("somebody else has changed the store meanwhile; run it again")
        return store_files(goldens)

    return replace_files


def case_lines(vector: Vector) -> set[str]:
    """Return the lines of its case in every dtype that its tensors may have been made in."""
    return {str(replace(vector.case, dtype=dtype)) for dtype in get_args(Dtype)}


def _examine_golden(
    name: str, listed: Listed, files: Files, damages: list[Damage]
) -> Golden | None:
    """Return a golden, or None after adding its damages."""
    before = len(damages)
    vector = _parse_file(vector_file(name), listed.vector, files, damages, parse_vector)
    stored = _parse_file(tensor_file(name), listed.tensors, files, damages, parse_tensors)
    if vector and stored and stored.case not in case_lines(vector):
        what = f"its case was edited: its tensors were made for {stored.case}"
        damages.append(Damage(vector_file(name), what))
    if vector and tuple(situations_of(vector.case)) != vector.situations:
        damages.append(Damage(vector_file(name), "situations: are not those of its case"))
    if vector is None or stored is None or len(damages) > before:
        return None
    return Golden(vector, stored, listed)


def _parse_file(
    file: str,
    digest: str,
    files: Files,
    damages: list[Damage],
    parse: Callable[[str, bytes], Parsed],
) -> Parsed | None:
    """Parse one of a golden's two files, also if its digest is wrong; add what is damaged."""
    data = files.get(file)
    if data is None:
        damages.append(Damage(file, "is missing; restore it"))
        return None
    if sha256(data) != digest:
        what = f"its SHA-256 is {sha256(data)[:12]}…, the manifest says {digest[:12]}…; restore it"
        damages.append(Damage(file, what))
    name = file.partition("/")[2].rpartition(".")[0]
    try:
        return parse(name, data)
    except BadGolden as error:
        damages.append(Damage(file, str(error)))
    return None
