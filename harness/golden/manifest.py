"""The list of all goldens, with what their files must hash to."""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from harness.golden.damage import BadGolden
from harness.golden.vector import NAME, read_record, whole

FILE = "manifest.json"
FORMAT = "manifest/1"
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One golden's line."""

    # SHA-256 of its two files.
    vector: Digest
    tensors: Digest
    # What was checked out when its tensors were made.
    commit: str
    # Why it was made anew, where it was not made for the first time.
    reason: str


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lines by name, of which one that is wrong is told by it."""

    format: str
    goldens: dict[str, Any]


def vector_file(name: str) -> str:
    return f"vectors/{name}.json"


def tensor_file(name: str) -> str:
    return f"tensors/{name}.safetensors"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def manifest_text(listed: Mapping[str, Listed]) -> bytes:
    """As it is stored, by name."""
    manifest = _Manifest(FORMAT, {name: listed[name] for name in sorted(listed)})
    return (json.dumps(msgspec.to_builtins(manifest), indent=1) + "\n").encode()


def parse_manifest(text: bytes) -> dict[str, Listed]:
    """What is listed; refuses what is not a manifest of this format."""
    goldens = read_record(text, FORMAT, _Manifest).goldens
    for name in goldens:
        if not NAME.fullmatch(name):
            raise BadGolden(f"goldens={name!r}: a name has a-z, 0-9 and - only")
    return {name: whole(line, Listed, f"goldens.{name}") for name, line in goldens.items()}
