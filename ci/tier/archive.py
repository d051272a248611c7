"""One file that holds what a run found, small enough to be carried away."""

import io
import json
import tarfile
import zlib
from pathlib import Path

MOST_BYTES = 8 << 20
# Where bundles of what failed go.
FAILURES = "failures"
# The most valuable first; whatever is in a folder of the run's comes after them.
VALUE = (".md", ".tsv", ".json", ".xml", FAILURES, ".txt")
# What a gzip of a tar has for each file besides what is in it, and for the list of what is not.
PER_FILE, LIST = 1 << 10, 1 << 16


def pack(folder: Path, failures: Path, since: float, most: int = MOST_BYTES) -> bytes:
    """What a run left in its folder, and what failed since it began, as a .tar.gz."""
    ranked = []
    for name, file in _files(folder, failures, since).items():
        content = file.read_bytes()
        ranked.append((_rank(name), len(zlib.compress(content)) + PER_FILE, name, content))
    left_out: dict[str, int] = {}
    room, packed = most - LIST, io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for _, size, name, content in sorted(ranked):
            if size > room:
                left_out[name] = len(content)
            else:
                _add(tar, name, content)
                room -= size
        if left_out:
            _add(tar, "left-out.json", json.dumps(left_out, indent=1).encode())
    return packed.getvalue()


def replace(file: Path, content: bytes) -> None:
    """The old one until the new one is whole."""
    draft = file.with_name(f".{file.name}.draft")
    draft.write_bytes(content)
    draft.replace(file)


def _files(folder: Path, failures: Path, since: float) -> dict[str, Path]:
    """By their names in the archive."""
    # Archives and drafts are not part of what a run found.
    own = [f for f in folder.rglob("*") if f.is_file() and f.name[0] != "." and f.suffix != ".gz"]
    bundles = [bundle for bundle in failures.glob("*") if bundle.stat().st_mtime >= since]
    failed = [file for bundle in bundles for file in bundle.glob("*")]
    return {str(file.relative_to(folder)): file for file in own} | {
        f"{FAILURES}/{file.relative_to(failures)}": file for file in failed
    }


def _rank(name: str) -> int:
    """Less is of more value."""
    folder, _, file = name.partition("/")
    kind = folder if file else Path(folder).suffix
    return VALUE.index(kind) if kind in VALUE else len(VALUE)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
