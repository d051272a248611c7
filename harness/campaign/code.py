"""A digest of the code that a campaign judges, and of what judges it."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import harness
from harness.candidates import locate


def digest_of_code(candidates: Iterable[str]) -> str:
    """It is another once a module was changed: of the harness, or in a candidate's folder.

    What is installed is known by its version, and of that nothing is read.
    """
    folders = {folder for name in candidates if (folder := locate(name).folder)}
    seen = hashlib.sha256()
    for folder in (str(Path(harness.__file__).parent), *sorted(folders)):
        for file in _modules(Path(folder)):
            seen.update(f"{file.relative_to(folder)}\n".encode())
            seen.update(hashlib.sha256(file.read_bytes()).digest())
    return seen.hexdigest()[:16]


def _modules(folder: Path) -> Iterator[Path]:
    """Yield the modules of a folder, and of the packages in it."""
    yield from sorted(folder.glob("*.py"))
    for package in sorted(folder.glob("*/__init__.py")):
        yield from _modules(package.parent)
