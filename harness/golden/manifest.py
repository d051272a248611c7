"""The list of all goldens, with what their files must hash to."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from harness.golden.damage import BadGolden
from harness.golden.vector import NAME, read_record

FILE = "manifest.json"
FORMAT = "manifest/1"
FIELDS = {"format", "goldens"}
ENTRY_FIELDS = {"vector", "tensors", "commit", "reason"}

_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Listed:
    """One golden's line."""

    # SHA-256 of its two files.
    vector: str
    tensors: str
    # What was checked out when its tensors were made.
    commit: str
    # Why it was made anew, where it was not made for the first time.
    reason: str = ""


def vector_file(name: str) -> str:
    return f"vectors/{name}.json"


def tensor_file(name: str) -> str:
    return f"tensors/{name}.safetensors"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def manifest_text(listed: Mapping[str, Listed]) -> bytes:
    """As it is stored, by name."""
    goldens = {name: asdict(listed[name]) for name in sorted(listed)}
    return (json.dumps({"format": FORMAT, "goldens": goldens}, indent=1) + "\n").encode()


def parse_manifest(text: bytes) -> dict[str, Listed]:
    """What is listed; refuses what is not a manifest of this format."""
    record = read_record(text, FORMAT, FIELDS)
    if not isinstance(record["goldens"], dict):
        raise BadGolden("goldens: must be an object")
    return {name: _listed(name, entry) for name, entry in record["goldens"].items()}


def _listed(name: str, entry: Any) -> Listed:
    if not NAME.fullmatch(name):
        raise BadGolden(f"goldens={name!r}: a name has a-z, 0-9 and - only")
    if not isinstance(entry, dict) or entry.keys() != ENTRY_FIELDS:
        raise BadGolden(f"goldens.{name}: must have {', '.join(sorted(ENTRY_FIELDS))}")
    if not all(isinstance(value, str) for value in entry.values()):
        raise BadGolden(f"goldens.{name}: every value must be a text")
    for field in ("vector", "tensors"):
        if not _DIGEST.fullmatch(entry[field]):
            raise BadGolden(f"goldens.{name}.{field}={entry[field]!r}: is no SHA-256")
    return Listed(**entry)
