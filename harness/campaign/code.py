"""A digest of the code that a campaign runs: candidates, a recipe, and the harness itself."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import harness
from harness.against import names_recipe
from harness.campaign.request import Request
from harness.candidates import locate
from harness.candidates.registry import locate_recipe


def digest_of_code(request: Request) -> str:
    """Digest the modules of the harness, and those beside the candidates and a named recipe.

    Installed packages are not read: they change with their version only.
    """
    named = [locate(name) for name in request.candidates]
    if names_recipe(request.against):
        named.append(locate_recipe(request.against))
    folders = {code.folder for code in named if code.folder}
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
