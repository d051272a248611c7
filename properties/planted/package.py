"""A package whose steps are a library's own with mistakes, as a user would wire them."""

from collections.abc import Mapping
from pathlib import Path

from harness.candidates.published.library import Library

CANDIDATE = """
from contextlib import nullcontext

from harness.candidates.published.{library}.candidate import STEPS as RELEASED


def wrong(key, mistake):
    def step(case, rank, emit):
        with mistake():
            RELEASED[key](case, rank, emit)

    return step


STEPS = {{{steps}}}
"""
TABLES = """
from harness.candidates.published.{library} import limits, recipes

RELEASED = {released!r}
LIMITS = {{key: limits.LIMITS[of] for key, of in RELEASED.items()}}
STATED = {{key: limits.STATED[of] for key, of in RELEASED.items()}}
RECIPES = {{key: recipes.RECIPES[of] for key, of in RELEASED.items()}}
"""


def make_package(
    folder: Path, library: Library, name: str, code: str, entries: Mapping[str, tuple[str, str]]
) -> Path:
    """Write a package, and return the folder to import it from.

    An entry is a released entry and the name of a function in `code`, which returns what makes
    the mistake while it lasts.
    """
    steps = (f"{key!r}: wrong({of!r}, {mistake})" for key, (of, mistake) in entries.items())
    released = {key: of for key, (of, _) in entries.items()}
    tables = TABLES.format(library=library.name, released=released)
    files = {
        "__init__.py": "",
        "candidate.py": code + CANDIDATE.format(library=library.name, steps=", ".join(steps)),
        "limits.py": tables,
        "recipes.py": tables,
        "known.toml": "",
        "requirements.txt": (library.folder / "requirements.txt").read_text(),
    }
    package, facts = (folder / "outside" / each for each in (name, f"{name}-1.dist-info"))
    for made in (package, facts):
        made.mkdir(parents=True)
    for file, text in files.items():
        (package / file).write_text(text)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(f"[harness.candidates]\n{name} = {name}\n")
    return folder / "outside"
