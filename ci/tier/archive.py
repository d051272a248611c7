"""Pack the results of a run into one file of limited size, the most valuable first."""

import io
import json
import tarfile
import zlib
from pathlib import Path

MOST_BYTES = 8 << 20
# The folder of bundles in the archive.
FAILURES = "failures"
# Kinds of files, the most valuable first; files in folders come last, except those of bundles.
BY_VALUE = (".md", ".tsv", ".json", ".xml", FAILURES, ".txt")
# Bytes that the archive needs for each file besides its content, and for the list of what is not
# in it.
PER_FILE, LIST = 1 << 10, 1 << 16


def pack(folder: Path, failures: Path, since: float, most: int = MOST_BYTES) -> bytes:
    """Return a .tar.gz of the files in the folder of a run, and of bundles `since` it began.

    Files that do not fit are left out, and listed in left-out.json.
    """
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
    """Write a file so that it always has its old or its new content as a whole."""
    draft = file.with_name(f".{file.name}.draft")
    draft.write_bytes(content)
    draft.replace(file)


def _files(folder: Path, failures: Path, since: float) -> dict[str, Path]:
    """Return the files to pack, by their names in the archive."""
    # Without drafts, and without archives: the archive itself may be in this folder.
    own = [f for f in folder.rglob("*") if f.is_file() and f.name[0] != "." and f.suffix != ".gz"]
    bundles = [bundle for bundle in failures.glob("*") if bundle.stat().st_mtime >= since]
    of_bundles = [file for bundle in bundles for file in bundle.glob("*")]
    return {str(file.relative_to(folder)): file for file in own} | {
        f"{FAILURES}/{file.relative_to(failures)}": file for file in of_bundles
    }


def _rank(name: str) -> int:
    """Return the position of a file in the archive; the most valuable has the lowest."""
    folder, _, file = name.partition("/")
    kind = folder if file else Path(folder).suffix
    return BY_VALUE.index(kind) if kind in BY_VALUE else len(BY_VALUE)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
