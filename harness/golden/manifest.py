"""The manifest: the list of all goldens, with the digests of their files."""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from harness.golden.damage import BadGolden
from harness.golden.vector import NAME, decode, read_record

FILE = "manifest.json"
FORMAT = "manifest/1"
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The line of one golden."""

    # SHA-256 of its two files.
    vector: Digest
    tensors: Digest
    # The commit that was checked out when its tensors were made.
    commit: str
    # Why its numbers were replaced; empty if they never were.
    reason: str


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of the file."""

    format: str
    # `parse_manifest` decodes the lines one by one, so that its error can name the golden.
    goldens: dict[str, Any]


def vector_file(name: str) -> str:
    return f"vectors/{name}.json"


def tensor_file(name: str) -> str:
    return f"tensors/{name}.safetensors"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def manifest_text(listed: Mapping[str, Listed]) -> bytes:
    """Return the content of the manifest's file, with the goldens in order of their names."""
    manifest = _Manifest(FORMAT, {name: listed[name] for name in sorted(listed)})
    return (json.dumps(msgspec.to_builtins(manifest), indent=1) + "\n").encode()


def parse_manifest(text: bytes) -> dict[str, Listed]:
    """Return the lines of a manifest by name; raise `BadGolden` if it is none of this format."""
    goldens = read_record(text, FORMAT, _Manifest).goldens
    for name in goldens:
        if not NAME.fullmatch(name):
            raise BadGolden(f"goldens={name!r}: a name has a-z, 0-9 and - only")
    return {name: decode(line, Listed, f"goldens.{name}") for name, line in goldens.items()}
