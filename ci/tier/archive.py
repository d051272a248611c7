"""One file that holds what a run found, small enough to be carried away."""

import io
import json
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 8 << 20
# Where bundles of what failed go.
FAILURES = "failures"
# The most valuable first; whatever is in a folder of the run's comes after them.
VALUE = (".md", ".tsv", ".json", ".xml", FAILURES, ".txt")
# What a gzip of a tar has for each file besides what is in it, and for the list of what is not.
PER_FILE, LIST = 1 << 10, 1 << 16


@dataclass(frozen=True, slots=True)
class Part:
    """A file that may go into it."""

    name: str
    content: bytes
    # Compressed, with what names it.
    size: int

    @property
    def value(self) -> int:
        """Less is more."""
        folder, _, file = self.name.partition("/")
        kind = folder if file else Path(folder).suffix
        return VALUE.index(kind) if kind in VALUE else len(VALUE)


def pack(folder: Path, failures: Path, since: float, most: int = MOST_BYTES) -> bytes:
    """What a run left in its folder, and what failed since it began, as a .tar.gz."""
    kept: list[Part] = []
    left_out: dict[str, int] = {}
    room = most - LIST
    for part in sorted(_parts(folder, failures, since), key=lambda part: (part.value, part.size)):
        if part.size > room:
            left_out[part.name] = len(part.content)
            continue
        kept.append(part)
        room -= part.size
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for part in kept:
            _add(tar, part.name, part.content)
        if left_out:
            _add(tar, "left-out.json", json.dumps(left_out, indent=1).encode())
    return packed.getvalue()


def replace(file: Path, content: bytes) -> None:
    """The old one until the new one is whole."""
    draft = file.with_name(f".{file.name}.draft")
    draft.write_bytes(content)
    draft.replace(file)


def _parts(folder: Path, failures: Path, since: float) -> Iterator[Part]:
    for file in folder.rglob("*"):
        if file.is_file() and not file.name.startswith(".") and not file.name.endswith(".tar.gz"):
            yield _part(str(file.relative_to(folder)), file)
    for bundle in failures.glob("*"):
        if bundle.stat().st_mtime >= since:
            for file in bundle.glob("*"):
                yield _part(f"{FAILURES}/{file.relative_to(failures)}", file)


def _part(name: str, file: Path) -> Part:
    content = file.read_bytes()
    return Part(name, content, len(zlib.compress(content)) + PER_FILE)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
