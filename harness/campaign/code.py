"""A digest of the code that a campaign runs: the candidates and the harness itself."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import harness
from harness.candidates import locate


def digest_of_code(candidates: Iterable[str]) -> str:
    """Digest the modules of the harness, and those in the folders of these candidates.

    Installed packages are not read: they change with their version only.
    """
    folders = {folder for name in candidates if (folder := locate(name).folder)}
    combined = hashlib.sha256()
    for folder in (str(Path(harness.__file__).parent), *sorted(folders)):
        for file in _modules(Path(folder)):
            combined.update(f"{file.relative_to(folder)}\n".encode())
            combined.update(hashlib.sha256(file.read_bytes()).digest())
    return combined.hexdigest()[:16]


def _modules(folder: Path) -> Iterator[Path]:
    """Yield the modules of a folder, and those of the packages in it."""
    yield from sorted(folder.glob("*.py"))
    for package in sorted(folder.glob("*/__init__.py")):
        yield from _modules(package.parent)
